package differ

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"sluice/internal/proxy"
)

// Differ knows what one dataplane has in the kernel. It is used by one goroutine.
type Differ[ID comparable, V any] struct {
	mode Mode[ID, V]

	// What is in force.
	rows     map[proxy.PortKey]Row  // nil: not known
	stuck    map[proxy.PortKey]bool // those of them that were refused since, and may be as for an earlier node
	checks   map[proxy.HealthCheckKey]*proxy.HealthCheck
	node     *proxy.Node
	constant map[ID]V
	refs     map[ID]int     // how many rows want a shared object that is there
	idle     map[ID]idle[V] // those of them that none does

	keys func(*proxy.State) iter.Seq[proxy.PortKey] // the rows that a Sync renders, in its order

	rewritten proxy.Rewritten // by the last Sync
}

type idle[V any] struct {
	value V
	since time.Time
}

// New returns a differ that knows nothing of the kernel yet.
func New[ID comparable, V any](m Mode[ID, V]) *Differ[ID, V] {
	return &Differ[ID, V]{mode: m, keys: func(s *proxy.State) iter.Seq[proxy.PortKey] { return maps.Keys(s.Rows) }}
}

// Forget makes the next Apply ask for a Sync: the kernel is not as it was left.
func (d *Differ[ID, V]) Forget() { d.rows = nil }

// Node returns the node that is in force; nil if nothing is known.
func (d *Differ[ID, V]) Node() *proxy.Node {
	if d.rows == nil {
		return nil
	}
	return d.node
}

// Row returns a row as it is in force; without a ServicePort there is none.
func (d *Differ[ID, V]) Row(key proxy.PortKey) Row { return d.rows[key] }

// Objects calls each for all that a row has in the kernel, with what is shared
// by rows, and returns the row; without a ServicePort there is none.
func (d *Differ[ID, V]) Objects(key proxy.PortKey, each func(ID, V)) (Row, error) {
	if d.rows == nil {
		return Row{}, fmt.Errorf("%w: what the kernel has is not known", proxy.ErrNeedSync)
	}
	r := d.rows[key]
	if r.ServicePort == nil {
		return r, nil
	}
	c := newChanges(&d.mode) // Nothing is written, so nobody who waits for the end of it is called.
	if err := d.mode.Row(Row{}, r, c); err != nil {
		return r, err
	}
	for _, x := range c.list {
		each(x.ID, x.New)
	}
	for id, u := range c.uses {
		each(id, u.value)
	}
	return r, nil
}

// Constant calls each for what does not depend on rows.
func (d *Differ[ID, V]) Constant(each func(ID, V)) {
	for id, v := range d.constant {
		each(id, v)
	}
}

// Rewritten returns what the last Sync wrote, unless it found nothing at all.
func (d *Differ[ID, V]) Rewritten() proxy.Rewritten { return d.rewritten }

// Wanted reports whether a shared object is there.
func (d *Differ[ID, V]) Wanted(id ID) bool { _, ok := d.refs[id]; return ok }

// Apply brings rows to what is wanted. It lists nothing.
func (d *Differ[ID, V]) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	if d.rows == nil {
		return nil, fmt.Errorf("%w: what the kernel has is not known", proxy.ErrNeedSync)
	}
	refused := proxy.Refused{}
	for {
		c := newChanges(&d.mode)
		constant := d.render(c, want, changed, refused)
		n, err := 0, d.contested(want, changed, refused)
		if err == nil {
			n, err = d.write(ctx, c, math.MaxInt)
		}
		c.end(err == nil)
		if err == nil {
			d.applied(c, want, changed, refused)
			if constant != nil {
				d.constant = constant
			}
			d.evict(ctx)
			return refused, nil
		}
		if n == 0 && c.blame(err, refused) {
			continue
		}
		return nil, d.failed(n, err)
	}
}

// failed tells an error after n parts of a change were written. If nobody knows
// what the kernel has now, the next Apply asks for a Sync.
func (d *Differ[ID, V]) failed(n int, err error) error {
	r, _ := errors.AsType[*Refusal[ID, V]](err)
	if n > 0 || r != nil && slices.ContainsFunc(r.Failures, func(f Failure[ID, V]) bool { return f.Drift }) {
		err = fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	if errors.Is(err, proxy.ErrNeedSync) {
		d.rows = nil
	}
	return err
}

// render takes the difference that changed rows and the rest make.
func (d *Differ[ID, V]) render(c *Changes[ID, V], want *proxy.State, changed *proxy.Changed, refused proxy.Refused) (constant map[ID]V) {
	if changed.Node || changed.CIDRs {
		for id, v := range d.constant {
			c.had(id, v)
		}
		constant = d.constants(c, want)
	}
	node := d.after(want, changed)
	for _, key := range changed.Rows {
		d.row(c, key, d.rows[key], Row{want.Rows[key], node}, refused)
	}
	if changed.Node && d.mode.SameRows != nil {
		done := map[proxy.PortKey]bool{}
		for _, key := range changed.Rows {
			done[key] = true
		}
		for key, r := range d.rows {
			if !done[key] && !d.mode.SameRows(r.Node, node) {
				d.row(c, key, r, Row{r.ServicePort, node}, refused)
			}
		}
	}
	for _, key := range changed.HealthChecks {
		d.healthCheck(d.checks[key], c.Remove)
		d.healthCheck(want.HealthChecks[key], c.Add)
	}
	c.share(d.refs)
	return constant
}

// contested asks for a Sync if a row is to get a frontend that a refused one has
// in its earlier form: either would take it from the other later.
func (d *Differ[ID, V]) contested(want *proxy.State, changed *proxy.Changed, refused proxy.Refused) error {
	if len(d.stuck)+len(refused) == 0 {
		return nil
	}
	held := map[proxy.Frontend][]proxy.PortKey{}
	anyKind := func(f proxy.Frontend) proxy.Frontend { // two kinds cannot have the same address
		if f.Kind != proxy.NodePort {
			f.Kind = proxy.ClusterIP
		}
		return f
	}
	for _, key := range slices.AppendSeq(slices.Collect(maps.Keys(d.stuck)), maps.Keys(refused)) {
		_, tried := slices.BinarySearchFunc(changed.Rows, key, proxy.ComparePortKeys)
		if old := d.rows[key].ServicePort; old != nil && (refused[key] != nil || !tried) {
			for _, f := range old.Frontends {
				held[anyKind(f)] = append(held[anyKind(f)], key)
			}
		}
	}
	for _, key := range changed.Rows {
		if sp := want.Rows[key]; sp != nil && refused[key] == nil {
			for _, f := range sp.Frontends {
				for _, by := range held[anyKind(f)] {
					if by.Protocol == key.Protocol {
						return fmt.Errorf("%w: %v is to get a frontend of %v, which is refused", proxy.ErrNeedSync, key, by)
					}
				}
			}
		}
	}
	return nil
}

// after returns the node as it is after some changes.
func (d *Differ[ID, V]) after(want *proxy.State, changed *proxy.Changed) *proxy.Node {
	if changed.Node {
		return want.Node
	}
	return d.node
}

func (d *Differ[ID, V]) healthCheck(h *proxy.HealthCheck, put func(ID, V)) {
	if h != nil && d.mode.HealthCheck != nil {
		d.mode.HealthCheck(h, put)
	}
}

// row renders the difference between two forms of a row, unless it is refused.
func (d *Differ[ID, V]) row(c *Changes[ID, V], key proxy.PortKey, old, cur Row, refused proxy.Refused) {
	if refused[key] != nil {
		return
	}
	c.owner = &key
	if cur.ServicePort != nil {
		c.owner = &cur.Key
	}
	if err := d.mode.Row(old, cur, c); err != nil {
		refused[key] = err
	}
	c.owner = nil
}

func (d *Differ[ID, V]) constants(c *Changes[ID, V], want *proxy.State) map[ID]V {
	all := map[ID]V{}
	d.mode.Constant(want, func(id ID, v V) {
		all[id] = v
		c.set(id, v)
	})
	return all
}

// share adds the shared objects that get their first row or lose their last.
func (c *Changes[ID, V]) share(refs map[ID]int) {
	for _, id := range c.begun {
		u := c.uses[id]
		before, there := refs[id]
		switch after := before + u.by; {
		case after > 0 && !there:
			c.set(id, u.value)
		case after == 0 && there && c.mode.Sharing(id) == Shared:
			c.had(id, u.value)
		}
	}
	c.begun = nil
}

// write makes the changes below a rank and returns how many parts of them were made.
func (d *Differ[ID, V]) write(ctx context.Context, c *Changes[ID, V], below int) (n int, err error) {
	for _, some := range c.parts(d.mode.Limit(), below) {
		if err := d.mode.Write(ctx, some); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// applied remembers what is in force now.
func (d *Differ[ID, V]) applied(c *Changes[ID, V], want *proxy.State, changed *proxy.Changed, refused proxy.Refused) {
	node := d.after(want, changed)
	for key := range refused {
		d.stuck[key] = true
	}
	for _, key := range changed.Rows {
		if refused[key] != nil {
			continue
		}
		delete(d.stuck, key)
		if sp := want.Rows[key]; sp != nil {
			d.rows[key] = Row{sp, node}
		} else {
			delete(d.rows, key)
		}
	}
	if changed.Node && d.mode.SameRows != nil { // else no row depends on it
		for key, r := range d.rows {
			if refused[key] == nil {
				d.rows[key] = Row{r.ServicePort, node}
			}
		}
	}
	for _, key := range changed.HealthChecks {
		if h := want.HealthChecks[key]; h != nil {
			d.checks[key] = h
		} else {
			delete(d.checks, key)
		}
	}
	d.node = node
	for id, u := range c.uses {
		d.count(id, u)
	}
}

// count notes how many rows more want a shared object.
func (d *Differ[ID, V]) count(id ID, u *use[V]) {
	d.refs[id] += u.by
	switch {
	case d.refs[id] > 0:
		delete(d.idle, id)
	case d.mode.Sharing(id) == Lingers:
		d.idle[id] = idle[V]{u.value, time.Now()}
	default:
		delete(d.refs, id)
	}
}

// evict takes away what lingers, if there is too much of it. What cannot go now
// lingers on.
func (d *Differ[ID, V]) evict(ctx context.Context) {
	if len(d.idle) <= d.mode.MaxIdle {
		return
	}
	c := newChanges(&d.mode)
	for id, i := range d.idle {
		if time.Since(i.since) >= d.mode.IdleTime {
			c.had(id, i.value)
		}
	}
	n, err := d.write(ctx, c, math.MaxInt)
	for id := range c.index {
		if err != nil && !errors.Is(d.failed(n, err), proxy.ErrNeedSync) {
			d.idle[id] = idle[V]{d.idle[id].value, time.Now()}
			continue
		}
		delete(d.idle, id)
		delete(d.refs, id)
	}
}

// Sync makes the kernel right whatever was there before.
func (d *Differ[ID, V]) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.rows = nil
	refused := proxy.Refused{}
	for {
		c := newChanges(&d.mode)
		err := d.sync(ctx, c, want, refused)
		c.end(err == nil)
		if err == nil {
			return refused, nil
		}
		if !c.blame(err, refused) {
			return nil, err
		}
	}
}

func (d *Differ[ID, V]) sync(ctx context.Context, c *Changes[ID, V], want *proxy.State, refused proxy.Refused) error {
	rest, empty, err := d.mode.List(ctx, want, c.had)
	if err != nil {
		return err
	}
	constant := d.constants(c, want)
	d.refs, d.idle = map[ID]int{}, map[ID]idle[V]{}
	rows := make(map[proxy.PortKey]Row, len(want.Rows))
	for key := range d.keys(want) {
		r := Row{want.Rows[key], want.Node}
		if d.row(c, key, Row{}, r, refused); refused[key] == nil {
			rows[key] = r
		}
		if empty && c.size >= d.mode.Limit() {
			if err := d.stream(ctx, c); err != nil {
				return err
			}
		}
	}
	if rest != nil && !empty {
		if err := rest(); err != nil {
			return err
		}
	}
	for _, h := range want.HealthChecks {
		d.healthCheck(h, c.Add)
	}
	c.share(d.refs)
	if d.rewritten = (proxy.Rewritten{}); !empty {
		d.rewritten = c.rewritten()
	}
	if _, err := d.write(ctx, c, math.MaxInt); err != nil {
		return err
	}
	for id, u := range c.uses {
		d.count(id, u)
	}
	d.stuck = map[proxy.PortKey]bool{}
	d.rows, d.checks, d.node, d.constant = rows, map[proxy.HealthCheckKey]*proxy.HealthCheck{}, want.Node, constant
	maps.Copy(d.checks, want.HealthChecks)
	return nil
}

// stream writes what has been rendered, but for what makes it live. A kernel
// that has nothing takes it in any order of rows, and nobody need hold all.
func (d *Differ[ID, V]) stream(ctx context.Context, c *Changes[ID, V]) error {
	c.share(d.refs)
	if _, err := d.write(ctx, c, d.mode.Live); err != nil {
		return err
	}
	c.keep(d.mode.Live)
	return nil
}
