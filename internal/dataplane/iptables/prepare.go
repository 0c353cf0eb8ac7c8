package iptables

import (
	"context"
	"errors"
	"slices"
	"strings"

	"sluice/internal/dataplane/kubeproxy"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ipt"
)

// Prepare opens loopback addresses to NodePorts, or closes those that a service
// proxy opened, for a daemon that may not write the host's settings. The guard
// comes before they are open, and stays for the daemon.
func Prepare(ctx context.Context, s Settings, opens bool) error {
	d, err := Open(ctx, s)
	if err != nil {
		return err
	}
	return errors.Join(d.prepare(ctx, opens), d.Close())
}

func (d *Dataplane) prepare(ctx context.Context, opens bool) error {
	f := d.ipv4()
	if f == nil {
		return nil
	}
	tables, err := f.programs.Save(ctx)
	if err != nil {
		return err
	}
	d.localnet.Find(ctx, kubeproxy.TracesOf(tables))
	guard := d.localnet.Guard(ctx, opens)
	if !opens {
		return nil // the rules are the daemon's
	}
	if lines := guardLines(index(tables), guard); len(lines) > 0 {
		if err := f.programs.Restore(ctx, []byte("*"+filter+"\n"+strings.Join(lines, "\n")+"\nCOMMIT\n")); err != nil {
			return err
		}
	}
	d.localnet.Open(ctx)
	return nil
}

// guardLines returns what puts the guard in force where it is not.
func guardLines(saved map[place]*ipt.Chain, guard localnet.Guard) []string {
	var lines []string
	chain, want := saved[nodePortFilter], loopbackGuard(guard)
	if chain == nil {
		// Of a chain that is there this line would take the rules away.
		lines = append(lines, declaration(nodePortFilter))
		chain = &ipt.Chain{}
	}
	if !slices.Contains(chain.Rules, want) {
		lines = append(lines, "-I "+kubeNodePorts+" "+want)
		if other := loopbackGuard(localnet.Guard{Noted: !guard.Noted}); slices.Contains(chain.Rules, other) {
			lines = append(lines, "-D "+kubeNodePorts+" "+other)
		}
	}
	for _, j := range jumps() {
		from := saved[j.place]
		if j.table == filter && ipt.Target(j.rule) == kubeNodePorts && (from == nil || !slices.Contains(from.Rules, j.rule)) {
			lines = append(lines, "-I "+j.chain+" "+j.rule)
		}
	}
	return lines
}
