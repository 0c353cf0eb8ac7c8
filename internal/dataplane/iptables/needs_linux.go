package iptables

import (
	"context"
	"errors"
	"fmt"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// need is a part of the kernel that some rows need and that may be missing. The
// legacy variant does not say whose rule it misses it for.
type need struct {
	what, module string
	of           func(*proxy.ServicePort) bool
	rule         string // a rule that needs it
}

func needs() []need {
	return []need{
		{
			"session affinity", "xt_recent",
			func(sp *proxy.ServicePort) bool { return sp.Affinity > 0 },
			"-m recent --rcheck --seconds 1 --reap --name " + kubeProbe + " --rsource -j RETURN",
		},
		{
			"protocol SCTP", "xt_sctp",
			func(sp *proxy.ServicePort) bool { return sp.Key.Protocol == proxy.SCTP },
			"-p sctp -m sctp --dport 1 -j RETURN",
		},
		{
			"several endpoints", "xt_statistic",
			func(sp *proxy.ServicePort) bool { return len(sp.Cluster) > 1 || len(sp.Local) > 1 },
			"-m statistic --mode random --probability 0.5 -j RETURN",
		},
	}
}

// lacking returns the rows that need what the kernel does not have, and why each
// is not to be had. It tries a rule of each kind in a chain that nothing leads to.
func (d *Dataplane) lacking(ctx context.Context, rows map[proxy.PortKey]*proxy.ServicePort) (map[proxy.PortKey]error, error) {
	out := map[proxy.PortKey]error{}
	for _, f := range d.families {
		for _, n := range needs() {
			reason, err := f.try(ctx, n)
			if err != nil {
				return nil, err
			}
			for key, sp := range rows {
				if reason != nil && key.Family == f.Family && n.of(sp) {
					out[key] = reason
				}
			}
		}
	}
	return out, nil
}

// try returns why the kernel does not take a rule; nil if it does.
func (f *family) try(ctx context.Context, n need) (reason, err error) {
	p := chainRef{nat, kubeProbe}
	added, removed := newScript(), newScript()
	added.rewrite(p, []string{n.rule})
	_, err = f.restore(ctx, added)
	var refused *ipt.RestoreError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("%s needs module %s of the kernel: %w", n.what, n.module, err), nil
	case err != nil:
		return nil, err
	}
	removed.remove(p)
	_, err = f.restore(ctx, removed)
	return nil, err
}
