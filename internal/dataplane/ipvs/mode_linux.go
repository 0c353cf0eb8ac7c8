package ipvs

import (
	"context"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// Mode is the ipvs mode, which can clean up after kube-proxy's and nothing else yet.
func Mode() mode.Mode {
	return mode.Mode{
		Name:    "ipvs",
		Cleanup: func(ctx context.Context, _ proxy.Dataplane) ([]string, error) { return Cleanup(ctx) },
	}
}
