package trial

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"sluice/internal/proxy"
	"sluice/test/cluster/peers/client"
	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
)

// rounds is how often each kind of connection is measured, alternately, so that other load affects
// all kinds.
const rounds = 15

// dataPath compares connections through a ClusterIP with direct ones.
func (t *trial) dataPath(ctx context.Context) (string, error) {
	began := time.Now()
	d := &figures.DataPath{}
	service := []netip.AddrPort{netip.AddrPortFrom(load.ClusterIP(load.Data), load.ServicePort)}
	for _, x := range []struct {
		protocol proxy.Protocol
		out      *figures.Pair
	}{{proxy.TCP, &d.TCP}, {proxy.UDP, &d.UDP}} {
		all, err := t.connections(ctx, t.site, connectionKind{x.protocol, service}, connectionKind{x.protocol, load.DataTargets()})
		if err != nil {
			return "", err
		}
		through, direct := all[0].figure(), all[1].figure()
		sum := all[0].Count
		sum.Add(all[1].Count)
		*x.out = figures.Pair{
			PerSecond: figures.NewRates(all[0].rates, all[1].rates),
			Service:   through.Latency, Direct: direct.Latency, Made: sum.Asked - sum.Failed, Failed: sum.Failed,
		}
		if sum.Err != nil {
			x.out.Error = sum.Err.Error()
		}
	}
	var err error
	if d.Bulk, err = t.bulk(ctx); err != nil {
		return "", err
	}
	d.Took = figures.SecondsOf(time.Since(began))
	t.result.DataPath = d
	return fmt.Sprintf("TCP %.0f/s, %.2f of direct, UDP %.0f/s, %.2f of direct", d.TCP.PerSecond.Service, d.TCP.PerSecond.Ratio,
		d.UDP.PerSecond.Service, d.UDP.PerSecond.Ratio), nil
}

// connectionKind is one of the kinds of connections that are compared.
type connectionKind struct {
	protocol proxy.Protocol
	to       []netip.AddrPort // round-robin
}

// connectionStats accumulates rounds of connections of one kind.
type connectionStats struct {
	client.Count
	rates []float64         // connections per second, of each round
	took  []figures.Seconds // of each connection of the single-loop bursts
}

// figure returns the median rate and the latency.
func (t *connectionStats) figure() figures.Bare {
	return figures.Bare{PerSecond: figures.Percentile(t.rates, 50), Latency: figures.Latency{
		P50: figures.Percentile(t.took, 50), P99: figures.Percentile(t.took, 99),
	}}
}

// connections makes rounds of connections of each kind. A round is one burst for the rate, with as
// many loops as processors, and one for the latency, with one loop. Each burst starts with an empty
// conntrack table.
func (b *Bench) connections(ctx context.Context, s *site, kinds ...connectionKind) ([]connectionStats, error) {
	out := make([]connectionStats, len(kinds))
	for i := range rounds * len(kinds) {
		k, t := kinds[i%len(kinds)], &out[i%len(kinds)]
		for _, loops := range []int{runtime.NumCPU(), 1} {
			if err := errors.Join(ctx.Err(), s.node.Host.FlushConntrack()); err != nil {
				return nil, err
			}
			done, err := s.client.Run(client.Burst{Protocol: k.protocol, To: k.to, Loops: loops, For: b.Limits.Burst})
			if err != nil {
				return nil, err
			}
			t.Add(done.Count)
			if loops == runtime.NumCPU() {
				t.rates = append(t.rates, float64(len(done.Took))/done.Elapsed.Seconds())
			}
			if loops == 1 {
				for _, one := range done.Took {
					t.took = append(t.took, figures.SecondsOf(one))
				}
			}
		}
	}
	return out, nil
}

// bulk measures the throughput of one connection.
func (t *trial) bulk(ctx context.Context) (figures.Rates, error) {
	service := netip.AddrPortFrom(load.ClusterIP(load.Data), load.BulkPort)
	endpoint := netip.AddrPortFrom(load.DataTargets()[0].Addr(), load.BulkTargetPort)
	var through, direct []float64
	for range rounds / 3 { // each takes longer
		a, err := t.site.client.Bulk(service, 2*t.Limits.Burst)
		b, err2 := t.site.client.Bulk(endpoint, 2*t.Limits.Burst)
		if err := errors.Join(err, err2, ctx.Err()); err != nil {
			return figures.Rates{}, err
		}
		through, direct = append(through, a), append(direct, b)
	}
	return figures.NewRates(through, direct), nil
}
