package kernelspace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

// Dataplane implements Services with HNS.
type Dataplane struct {
	service hns.Interface
	links   func() (map[netip.Addr]string, error) // returns the MACs of this node's links, by their addresses
	options mode.Kernelspace
	differ  *differ.Differ[id, value]

	mu           sync.Mutex // Watch runs concurrently with Sync and Apply
	stopped      bool       // HNS was not running at the last check
	features     hns.Features
	cannotUpdate bool         // HNS cannot update load balancers, whatever its version says
	ips          []netip.Addr // of this node
	inv          inventory
	setAside     map[id]change // changes of load balancers that HNS refused
	hidden       map[id]bool   // objects that HNS reports as existing but does not list
	op           operation
}

// operation is what happened in the current Sync or Apply.
type operation struct {
	listedAll       bool          // everything was listed
	listedEndpoints bool          // the endpoints were listed
	readNetwork     bool          // the network and its subnets were read
	tried           map[id]bool   // objects whose change was attempted
	refused         proxy.Refused // rows that lack an object, or that HNS cannot serve in full
}

// New returns a dataplane that uses service. It does not call the service yet.
func New(service hns.Interface, links func() (map[netip.Addr]string, error), s mode.Settings) *Dataplane {
	d := &Dataplane{service: service, links: links, options: s.Kernelspace}
	d.differ = differ.New(d.objects())
	return d
}

// Close leaves all objects of HNS in place.
func (d *Dataplane) Close() error { return nil }

func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.differ.Forget()
	if err := d.readState(ctx, want.Node); err != nil {
		return nil, err
	}
	if err := d.overlayProblem(); err != nil {
		return nil, err
	}
	refused, err := d.differ.Sync(ctx, want)
	if err != nil {
		return nil, err
	}
	d.addRefused(refused)
	return refused, nil
}

// addRefused adds the rows that lack an object, or that HNS cannot serve in full. HNS has
// the rest of them. The zero key stands for load balancers that HNS does not delete.
func (d *Dataplane) addRefused(to proxy.Refused) {
	for key, err := range d.op.refused {
		to[key] = &proxy.PartialError{Err: err}
	}
}

// readState reads what HNS supports and has.
func (d *Dataplane) readState(ctx context.Context, n *proxy.Node) error {
	d.beginOperation()
	d.ips, d.setAside, d.hidden, d.inv.network = n.IPs, map[id]change{}, map[id]bool{}, hns.Network{}
	if err := d.askFeatures(ctx); err != nil {
		return err
	}
	return d.readAll(ctx)
}

func (d *Dataplane) beginOperation() {
	d.op = operation{tried: map[id]bool{}, refused: proxy.Refused{}}
}

func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.differ.Node() == nil || changed.Node && !slices.Equal(d.ips, want.Node.IPs) {
		d.differ.Forget()
		return nil, fmt.Errorf("%w: the objects of HNS are not known, or were made for other addresses of this node", proxy.ErrNeedSync)
	}
	d.beginOperation()
	refused, err := d.differ.Apply(ctx, want, changed)
	if err == nil {
		err = d.retry(ctx, changed)
	}
	if err != nil {
		d.differ.Forget()
		return nil, err
	}
	d.addRefused(refused)
	return refused, nil
}
