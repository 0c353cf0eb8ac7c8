package nftables

import (
	"context"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// isAlone says that no overlay takes anything from the rules.
func (d *Dataplane) isAlone() bool { return d.tables[0].over.Table == alone.Table }

// Mode is the nftables mode.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "nftables", Probe: Probe, Prepare: Prepare, Open: mode.Opener(Open), Flows: mode.OpenFlows, Ends: mode.OpenEnds, Traces: Traces,
		Render:    Render,
		Balancing: []proxy.Balancing{proxy.Random, proxy.RoundRobin, proxy.SourceHash},
		Cleanup: func(ctx context.Context, _ mode.Settings, open proxy.Dataplane) ([]string, error) {
			d, ok := open.(interface{ isAlone() bool })
			own := ok && d.isAlone()
			return Cleanup(ctx, Keep{Tables: own, Loopback: mode.KeepsLoopback(open)})
		},
	}
}
