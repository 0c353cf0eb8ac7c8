package kernelspace

import (
	"context"
	"errors"
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
	node     *proxy.Node // as rows are rendered for

	has    inventory
	fresh  bool            // has was read in this Sync or Apply
	listed bool            // or its endpoints were
	aside  map[id]setAside // what HNS refused
	tried  map[id]bool     // in this Sync or Apply
	rows   proxy.Refused   // whose objects were refused in it
}

// setAside is an object that is not as wanted.
type setAside struct {
	value
	wanted bool
}

var (
	_ proxy.Dataplane = (*Dataplane)(nil)
	_ proxy.Watcher   = (*Dataplane)(nil)
)

// New returns a dataplane over a service. It asks nothing yet.
func New(service hns.Interface, links func() (map[netip.Addr]string, error), s mode.Settings) *Dataplane {
	d := &Dataplane{service: service, links: links, options: s.Kernelspace}
	d.differ = differ.New(d.objects())
	return d
}

// Close leaves everything as it is.
func (d *Dataplane) Close() error { return nil }

// Sync makes HNS right whatever was there before.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.differ.Forget()
	if err := d.look(ctx, want); err != nil {
		return nil, err
	}
	if err := d.ensureSource(ctx); err != nil {
		return nil, err
	}
	for _, x := range d.has.strays { // before what is made in their place
		if err := d.service.DeleteEndpoint(ctx, x); err != nil && fatal(err) {
			return nil, err
		}
	}
	refused, err := d.differ.Sync(ctx, want)
	if err != nil {
		return nil, err
	}
	return d.refusals(refused, want, maps.Keys(want.Rows)), nil
}

// look finds out what HNS can do and has.
func (d *Dataplane) look(ctx context.Context, want *proxy.State) (err error) {
	d.begin(want)
	if d.features, err = d.service.Features(ctx); err != nil {
		return fmt.Errorf("ask HNS for its features: %w", err)
	}
	if d.options.DSR && !d.features.DSR {
		return errNoDSR
	}
	return d.read(ctx)
}

// begin takes over what rows are rendered for, and forgets what was refused.
func (d *Dataplane) begin(want *proxy.State) {
	d.node, d.aside = want.Node, map[id]setAside{}
	d.turn()
}

// turn forgets what was tried before.
func (d *Dataplane) turn() {
	d.fresh, d.listed, d.tried, d.rows = false, false, map[id]bool{}, proxy.Refused{}
}

// Apply brings what changed to what is wanted.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.differ.Node() == nil || changed.Node && !slices.Equal(d.node.IPs, want.Node.IPs) {
		d.differ.Forget()
		return nil, fmt.Errorf("%w: what HNS has, or is to have for this node's addresses, is not known", proxy.ErrNeedSync)
	}
	d.turn()
	if err := d.learnSubnets(ctx, want, changed.Rows); err != nil {
		return nil, d.lost(err)
	}
	refused, err := d.differ.Apply(ctx, want, changed)
	if err == nil {
		err = d.retry(ctx, changed.Rows)
	}
	if err != nil {
		return nil, d.lost(err)
	}
	if changed.Node {
		d.node = want.Node
	}
	return d.refusals(refused, want, slices.Values(changed.Rows)), nil
}

// lost has everything compared after an error in the middle of an Apply.
func (d *Dataplane) lost(err error) error {
	d.differ.Forget()
	if errors.Is(err, proxy.ErrNeedSync) {
		return err
	}
	return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
}

// refusals adds the rows that are not served as wanted to those that are not
// served at all.
func (d *Dataplane) refusals(refused proxy.Refused, want *proxy.State, rows func(func(proxy.PortKey) bool)) proxy.Refused {
	maps.Copy(refused, d.rows)
	for key := range rows {
		if sp := want.Rows[key]; sp != nil && refused[key] == nil {
			if err := d.limits(sp, want.Node); err != nil {
				refused[key] = err
			}
		}
	}
	return refused
}
