package userspace_test

import (
	"context"
	"testing"

	"sluice/internal/archtest/hops"
	"sluice/internal/proxy"
)

// onNode is a dataplane whose calls are made in the node's network namespace.
type onNode struct {
	proxy.Dataplane
	do func(func() error) error
}

func (d *onNode) Sync(ctx context.Context, want *proxy.State) (refused proxy.Refused, err error) {
	err = d.do(func() (err error) {
		refused, err = d.Dataplane.Sync(ctx, want)
		return err
	})
	return refused, err
}

// TestHops checks the hops of this mode in ARCHITECTURE.md.
func TestHops(t *testing.T) {
	n := newNode(t, relaySettings())
	hops.Follow(t, "userspace", &onNode{n.d, n.lab.Node().Do})
}
