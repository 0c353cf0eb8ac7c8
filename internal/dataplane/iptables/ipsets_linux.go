package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"sluice/internal/kernel/ipset"
	"sluice/internal/proxy"
)

// ipSets is the kernel's IP sets, of all owners.
type ipSets struct {
	names   func(context.Context) ([]string, error)
	destroy func(ctx context.Context, name string) error
}

const (
	// setWait bounds the wait for the kernel to let go of sets: nf_tables may
	// free deleted rules, and what they refer to, a little later.
	setWait = 2 * time.Second
	setPoll = 20 * time.Millisecond
)

// remove removes the sets of kube-proxy's ipvs mode, whose chains are gone. Those
// that stay in use are named in the error.
func (k ipSets) remove(ctx context.Context) (removed []string, err error) {
	names, err := k.names(ctx)
	waiting, cancel := context.WithTimeout(ctx, setWait)
	defer cancel()
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return !isSet(name) }) {
		failed := k.destroy(ctx, name)
		for errors.Is(failed, ipset.ErrBusy) && waiting.Err() == nil {
			time.Sleep(setPoll)
			failed = k.destroy(ctx, name)
		}
		switch {
		case failed == nil:
			removed = append(removed, "IP set "+name)
		case errors.Is(failed, ipset.ErrBusy):
			err = errors.Join(err, fmt.Errorf("remove IP set %s: %w", name, proxy.ErrInUse))
		case !errors.Is(failed, syscall.ENOENT): // else another process was faster
			err = errors.Join(err, fmt.Errorf("remove IP set %s: %w", name, failed))
		}
	}
	return removed, err
}

// isSet reports whether an IP set is one of kube-proxy's, by its exact name:
// others use the prefix. The kernel keeps 31 characters of a name.
func isSet(name string) bool {
	kinds := []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-FW",
		"LOAD-BALANCER-LOCAL", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP",
		"NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH",
		"NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	}
	return slices.ContainsFunc(kinds, func(kind string) bool {
		four, six := "KUBE-"+kind, "KUBE-6-"+kind
		return name == four || name == six[:min(len(six), 31)]
	})
}
