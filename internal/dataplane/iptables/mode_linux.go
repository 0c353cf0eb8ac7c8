package iptables

import (
	"context"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// Mode is the iptables mode, in the variant that the host uses.
func Mode() mode.Mode {
	host := func(s mode.Settings) Settings { return Settings{Settings: s} }
	return mode.Mode{
		Name: "iptables", Flows: mode.OpenFlows,
		Probe: func(ctx context.Context, s mode.Settings) ([]proxy.Family, error) { return Probe(ctx, host(s)) },
		Prepare: func(ctx context.Context, s mode.Settings, opens bool) error {
			return Prepare(ctx, host(s), opens)
		},
		Needed: func(ctx context.Context, s mode.Settings) (string, error) { return Needed(ctx, host(s)) },
		Open: mode.Opener(func(ctx context.Context, s mode.Settings) (*Dataplane, error) {
			return Open(ctx, host(s))
		}),
		Traces: func(ctx context.Context) (localnet.Traces, error) { return Traces(ctx, 0) },
		Cleanup: func(ctx context.Context, open proxy.Dataplane) ([]string, error) {
			keep := Keep{Loopback: mode.KeepsLoopback(open)}
			if own, ok := open.(*Dataplane); ok {
				keep.Variant = own.settings.Variant
			}
			return Cleanup(ctx, keep)
		},
	}
}
