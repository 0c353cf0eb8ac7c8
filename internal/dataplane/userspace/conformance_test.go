package userspace_test

import (
	"context"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"sluice/internal/conformance"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/userspace"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// open opens a dataplane in the calling thread's network namespace.
func open(ctx context.Context, t *testing.T, relay mode.Relay) (*userspace.Dataplane, error) {
	here, err := netns.Get()
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { here.Close() })
	d, err := userspace.Open(ctx, mode.Settings{MasqueradeBit: 14, Relay: relay})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		for _, m := range []string{"userspace_refused_clients_total", "userspace_failed_dials_total"} {
			t.Log(m, proxytest.Values(ctx, d, m))
		}
	})
	d.OpenSocketsIn((&traffic.Namespace{Name: "node", Handle: here}).Do)
	return d, nil
}

// settled knows the node's subnets at each write: the table moves pods faster than they are read.
type settled struct{ *userspace.Dataplane }

func (d *settled) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.UpdateSubnets()
	return d.Dataplane.Sync(ctx, want)
}

func (d *settled) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	d.UpdateSubnets()
	return d.Dataplane.Apply(ctx, want, changed)
}

// underTest puts the dataplane under the packet table.
func underTest(t *testing.T) conformance.Dataplane {
	relay := mode.DefaultRelay()
	relay.UDPTimeout = 10 * time.Second // there are thousands of sessions
	relay.DialTimeout = traffic.Scaled(relay.DialTimeout)
	return conformance.Dataplane{
		HandsOver: true,
		Relays:    true,
		Mode:      "nftables", // whose settings it has
		Refuses:   map[proxy.Protocol]string{proxy.SCTP: "no SCTP connection can be carried: sockets of the kernel cannot be spliced, and many kernels have none"},
		Open: func(ctx context.Context) (proxy.Dataplane, error) {
			d, err := open(ctx, t, relay)
			return &settled{d}, err
		},
	}
}

// TestConformance plays the packet table with real packets.
func TestConformance(t *testing.T) { conformance.Run(t, underTest(t)) }

// TestBridged runs it on a node whose pods share a bridge.
func TestBridged(t *testing.T) { conformance.RunBridged(t, underTest(t)) }

// TestRandom plays random states and packets against the oracle.
func TestRandom(t *testing.T) { conformance.RunRandom(t, underTest(t), 1, 30) }
