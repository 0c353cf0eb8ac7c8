package nftables

import (
	"context"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// Mode is the nftables mode.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "nftables", Probe: Probe, Prepare: Prepare, Open: mode.Opener(Open), Flows: mode.OpenFlows, Traces: Traces,
		Balancing: []proxy.Balancing{proxy.Random, proxy.RoundRobin, proxy.SourceHash},
		Cleanup: func(ctx context.Context, open proxy.Dataplane) ([]string, error) {
			_, own := open.(*Dataplane)
			return Cleanup(ctx, Keep{Tables: own, Loopback: mode.KeepsLoopback(open)})
		},
	}
}
