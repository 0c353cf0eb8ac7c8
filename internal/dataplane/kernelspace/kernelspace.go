package kernelspace

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

// Dataplane has HNS choose endpoints.
type Dataplane struct {
	service hns.Interface
	links   func() (map[netip.Addr]string, error) // the MACs of this node's links, by their addresses
	options mode.Kernelspace
	differ  *differ.Differ[id, value]

	mu       sync.Mutex // Watch works beside Sync and Apply
	stopped  bool       // the service did not run when it was last looked at
	features hns.Features
	replaces bool         // load balancers: HNS cannot change one, whatever its version says
	ips      []netip.Addr // this node's
	has      inventory
	aside    map[id]change // load balancers that are not as wanted
	unlisted map[id]bool   // what HNS calls there already, though no Sync finds it
	turn     turn
}

// turn is what happened in one Sync or Apply.
type turn struct {
	read    bool          // everything that HNS has
	listed  bool          // its endpoints
	learned bool          // the subnets of its network
	tried   map[id]bool   // objects
	refused proxy.Refused // rows that lack one, or that HNS cannot serve in full
}

// New returns a dataplane over a service. It asks nothing yet.
func New(service hns.Interface, links func() (map[netip.Addr]string, error), s mode.Settings) *Dataplane {
	d := &Dataplane{service: service, links: links, options: s.Kernelspace}
	d.differ = differ.New(d.objects())
	return d
}

// Close leaves everything as it is.
func (d *Dataplane) Close() error { return nil }

func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.differ.Forget()
	if err := d.look(ctx, want.Node); err != nil {
		return nil, err
	}
	if err := d.overlayProblem(); err != nil {
		return nil, err
	}
	refused, err := d.differ.Sync(ctx, want)
	if err != nil {
		return nil, err
	}
	maps.Copy(refused, d.turn.refused)
	return refused, nil
}

// look finds out what HNS can do and has.
func (d *Dataplane) look(ctx context.Context, n *proxy.Node) error {
	d.begin()
	d.ips, d.aside, d.unlisted, d.has.network = n.IPs, map[id]change{}, map[id]bool{}, hns.Network{}
	if err := d.askFeatures(ctx); err != nil {
		return err
	}
	return d.read(ctx)
}

func (d *Dataplane) begin() { d.turn = turn{tried: map[id]bool{}, refused: proxy.Refused{}} }

func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.differ.Node() == nil || changed.Node && !slices.Equal(d.ips, want.Node.IPs) {
		d.differ.Forget()
		return nil, fmt.Errorf("%w: what HNS has, or is to have for this node's addresses, is not known", proxy.ErrNeedSync)
	}
	d.begin()
	refused, err := d.differ.Apply(ctx, want, changed)
	if err == nil {
		err = d.retry(ctx, changed.Rows)
	}
	if err != nil {
		d.differ.Forget()
		return nil, err
	}
	maps.Copy(refused, d.turn.refused)
	return refused, nil
}
