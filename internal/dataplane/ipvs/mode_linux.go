package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// tableName is the nftables table of the mode.
const tableName = "sluice-ipvs"

// Mode is the ipvs mode.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "ipvs", Probe: Probe, Open: mode.Opener(Open), Flows: mode.OpenFlows, Ends: mode.OpenEnds, Cleanup: Cleanup, Polls: true,
		Unseen:    "those that IPVS takes",
		Render:    Render,
		Balancing: []proxy.Balancing{proxy.RoundRobin, proxy.LeastConnections, proxy.SourceHash, proxy.Maglev}, Weights: true,
		Prepare: func(ctx context.Context, s mode.Settings, opens bool) error {
			return newDataplane(kernel{}, s).overlay().Prepare(ctx, s, opens)
		},
		Traces: nftables.Overlay{Table: tableName}.Traces,
	}
}

// Probe returns the families that the kernel supports with both nftables and IPVS. It
// adds a virtual server at the alias, where no packet arrives, and removes it at once.
func Probe(ctx context.Context, s mode.Settings) ([]proxy.Family, error) {
	can, err := newDataplane(kernel{}, s).overlay().Probe(ctx, s)
	if err != nil {
		return nil, err
	}
	k, err := ipvs.Open()
	if err != nil {
		return nil, explain(err)
	}
	defer k.Close()
	return probe(ctx, k, scheduler(s.IPVS), can)
}

func probe(ctx context.Context, k ipvs.Interface, scheduler string, families []proxy.Family) (can []proxy.Family, err error) {
	for _, f := range families {
		s := ipvs.Server{Protocol: uint8(proxy.TCP), Addr: netip.AddrPortFrom(aliases[f], 1)}
		refused, failed := k.Do(ctx, []ipvs.Op{{Server: s, Settings: ipvs.Settings{Scheduler: scheduler}}, {Verb: ipvs.Delete, Server: s}})
		switch why := cmp.Or(failed, refused[0]); {
		case why == nil:
			can = append(can, f)
		case errors.Is(why, unix.ENOENT):
			return nil, errScheduler(scheduler)
		default:
			err = cmp.Or(err, explain(why))
		}
	}
	if len(can) > 0 {
		err = nil
	}
	return can, err
}

// scheduler returns the configured scheduler.
func scheduler(o mode.IPVS) string { return cmp.Or(o.Scheduler, "rr") }

func errScheduler(name string) error {
	return fmt.Errorf("the kernel has no IPVS scheduler %s: load module ip_vs_%s, or choose another --ipvs-scheduler", name, name)
}

// explain says what to do if the kernel has no IPVS.
func explain(err error) error {
	if errors.Is(err, ipvs.ErrMissing) {
		return fmt.Errorf("%w (CONFIG_IP_VS): load module ip_vs, or choose another --proxy-mode", err)
	}
	return err
}
