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

// Differ remembers what one dataplane has in the kernel. Only one goroutine at a
// time may use it.
type Differ[ID comparable, V any] struct {
	mode Mode[ID, V]

	// What is in force.
	rows     map[proxy.PortKey]Row  // nil if not known
	outdated map[proxy.PortKey]bool // rows whose last change was refused; those in rows keep their earlier version, perhaps for an earlier node
	checks   map[proxy.HealthCheckKey]*proxy.HealthCheck
	node     *proxy.Node
	constant map[ID]V
	refs     map[ID]int     // how many rows want each shared object that is in the kernel
	idle     map[ID]idle[V] // the objects of refs that no row wants
	claims   map[ID]claims[V]

	syncOrder func(*proxy.State) iter.Seq[proxy.PortKey] // the order in which a Sync renders rows

	rewritten proxy.Rewritten // by the last Sync
}

// idle is an object that lingers.
type idle[V any] struct {
	value V
	since time.Time
}

// New returns a differ that does not know yet what the kernel has.
func New[ID comparable, V any](m Mode[ID, V]) *Differ[ID, V] {
	return &Differ[ID, V]{mode: m, syncOrder: func(s *proxy.State) iter.Seq[proxy.PortKey] { return maps.Keys(s.Rows) }}
}

// Forget makes the next Apply return proxy.ErrNeedSync. Modes call it when the
// kernel's state may not be as they left it.
func (d *Differ[ID, V]) Forget() { d.rows = nil }

// Node returns the node that is in force, or nil if that is not known.
func (d *Differ[ID, V]) Node() *proxy.Node {
	if d.rows == nil {
		return nil
	}
	return d.node
}

// Row returns the version of a row that is in force. Its ServicePort is nil if
// there is none.
func (d *Differ[ID, V]) Row(key proxy.PortKey) Row { return d.rows[key] }

// Objects calls each for all objects that a row has in the kernel, including those
// that it shares with others. It returns the row, with a nil ServicePort if it is
// not in force.
func (d *Differ[ID, V]) Objects(key proxy.PortKey, each func(ID, V)) (Row, error) {
	if d.rows == nil {
		return Row{}, errUnknown
	}
	r := d.rows[key]
	if r.ServicePort == nil {
		return r, nil
	}
	c := newChanges(&d.mode) // It is not written, so functions passed to Then are not called.
	if err := d.mode.Row(Row{}, r, c); err != nil {
		return r, err
	}
	for _, x := range c.list {
		each(x.ID, x.New)
	}
	for id, u := range c.uses {
		each(id, u.value)
	}
	for id := range c.claims {
		each(id, d.claims[id][d.claims[id].first()])
	}
	return r, nil
}

// Constant calls each for the objects that do not depend on rows.
func (d *Differ[ID, V]) Constant(each func(ID, V)) {
	for id, v := range d.constant {
		each(id, v)
	}
}

// Rewritten returns what the last Sync wrote. It is zero if that Sync found the
// kernel empty.
func (d *Differ[ID, V]) Rewritten() proxy.Rewritten { return d.rewritten }

// HasShared reports whether the kernel has a shared object, be it idle or not.
func (d *Differ[ID, V]) HasShared(id ID) bool { _, ok := d.refs[id]; return ok }

// errUnknown says that the differ does not know what the kernel has.
var errUnknown = fmt.Errorf("%w: the state of the kernel is not known", proxy.ErrNeedSync)

// Apply brings what changed to the wanted state. Its cost is that of the change; it
// lists nothing. The rows it returns are refused, and an earlier version of them
// may be in force.
func (d *Differ[ID, V]) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	if d.rows == nil {
		return nil, errUnknown
	}
	refused := proxy.Refused{}
	for {
		c := newChanges(&d.mode)
		constant := d.render(c, want, changed, refused)
		n, err := 0, d.checkFrontends(want, changed, refused)
		if err == nil {
			n, err = d.write(ctx, c, math.MaxInt)
		}
		c.done(err == nil)
		if err == nil {
			d.recordApplied(c, want, changed, refused)
			d.recordContested(c, refused)
			if constant != nil {
				d.constant = constant
			}
			if err := d.evict(ctx); err != nil {
				return nil, err
			}
			return refused, nil
		}
		if n == 0 && c.addRefused(err, refused) {
			continue
		}
		return nil, d.writeError(n, err)
	}
}

// writeError returns the error of a write of which n parts were made before. If it
// is not known what the kernel has now, it wraps proxy.ErrNeedSync, and the next
// Apply returns that, too.
func (d *Differ[ID, V]) writeError(n int, err error) error {
	r, _ := errors.AsType[*Refusal[ID, V]](err)
	if n > 0 || r != nil && slices.ContainsFunc(r.Failures, func(f Failure[ID, V]) bool { return f.Drift }) {
		err = fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	if errors.Is(err, proxy.ErrNeedSync) {
		d.rows = nil
	}
	return err
}

// render adds to c what changed makes different. It returns the objects that do
// not depend on rows if they may have changed, otherwise nil.
func (d *Differ[ID, V]) render(c *Changes[ID, V], want *proxy.State, changed *proxy.Changed, refused proxy.Refused) (constant map[ID]V) {
	if changed.Node || changed.CIDRs {
		for id, v := range d.constant {
			c.setOld(id, v)
		}
		constant = d.renderConstant(c, want)
	}
	node := d.nodeAfter(want, changed)
	for _, key := range changed.Rows {
		d.renderRow(c, key, d.rows[key], Row{want.Rows[key], node}, refused)
	}
	if changed.Node && d.mode.SameRows != nil {
		done := map[proxy.PortKey]bool{}
		for _, key := range changed.Rows {
			done[key] = true
		}
		for key, r := range d.rows {
			if !done[key] && !d.mode.SameRows(r.Node, node) {
				d.renderRow(c, key, r, Row{r.ServicePort, node}, refused)
			}
		}
	}
	for _, key := range changed.HealthChecks {
		d.renderHealthCheck(d.checks[key], c.Remove)
		d.renderHealthCheck(want.HealthChecks[key], c.Add)
	}
	c.addShared(d.refs)
	c.addContested(d.claims)
	return constant
}

// checkFrontends returns proxy.ErrNeedSync if a row is about to get a frontend that
// a refused row has in its earlier version, which is still in force: writing
// either row later would remove the frontend of the other.
func (d *Differ[ID, V]) checkFrontends(want *proxy.State, changed *proxy.Changed, refused proxy.Refused) error {
	if len(d.outdated)+len(refused) == 0 {
		return nil
	}
	held := map[proxy.Frontend][]proxy.PortKey{}
	anyKind := func(f proxy.Frontend) proxy.Frontend { // all kinds but NodePort share one address space
		if f.Kind != proxy.NodePort {
			f.Kind = proxy.ClusterIP
		}
		return f
	}
	for _, key := range slices.AppendSeq(slices.Collect(maps.Keys(d.outdated)), maps.Keys(refused)) {
		_, retried := slices.BinarySearchFunc(changed.Rows, key, proxy.ComparePortKeys)
		if old := d.rows[key].ServicePort; old != nil && (refused[key] != nil || !retried) {
			for _, f := range old.Frontends {
				held[anyKind(f)] = append(held[anyKind(f)], key)
			}
		}
	}
	for _, key := range changed.Rows {
		if sp := want.Rows[key]; sp != nil && refused[key] == nil {
			for _, f := range sp.Frontends {
				for _, holder := range held[anyKind(f)] {
					if holder.Protocol == key.Protocol {
						return fmt.Errorf("%w: %v takes over a frontend of %v, whose change is refused", proxy.ErrNeedSync, key, holder)
					}
				}
			}
		}
	}
	return nil
}

// nodeAfter returns the node that is in force once the changes are made.
func (d *Differ[ID, V]) nodeAfter(want *proxy.State, changed *proxy.Changed) *proxy.Node {
	if changed.Node {
		return want.Node
	}
	return d.node
}

func (d *Differ[ID, V]) renderHealthCheck(h *proxy.HealthCheck, put func(ID, V)) {
	if h != nil && d.mode.HealthCheck != nil {
		d.mode.HealthCheck(h, put)
	}
}

// renderRow renders the difference between two versions of a row, unless the row is
// refused already, or both versions are absent: a row that was refused may be removed.
func (d *Differ[ID, V]) renderRow(c *Changes[ID, V], key proxy.PortKey, old, cur Row, refused proxy.Refused) {
	if refused[key] != nil || old.ServicePort == nil && cur.ServicePort == nil {
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

func (d *Differ[ID, V]) renderConstant(c *Changes[ID, V], want *proxy.State) map[ID]V {
	all := map[ID]V{}
	d.mode.Constant(want, func(id ID, v V) {
		all[id] = v
		c.setNew(id, v)
	})
	return all
}

// addShared adds the shared objects that get their first user or lose their last.
func (c *Changes[ID, V]) addShared(refs map[ID]int) {
	for _, id := range c.newUses {
		u := c.uses[id]
		before, exists := refs[id]
		switch after := before + u.delta; {
		case after > 0 && !exists:
			c.setNew(id, u.value)
		case after == 0 && exists && c.mode.Sharing(id) == Shared:
			c.setOld(id, u.value)
		}
	}
	c.newUses = nil
}

// write makes the changes whose rank is less than belowRank. It returns how many parts
// were written.
func (d *Differ[ID, V]) write(ctx context.Context, c *Changes[ID, V], belowRank int) (n int, err error) {
	for _, some := range c.parts(d.mode.Limit(), belowRank) {
		if err := d.mode.Write(ctx, some); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// recordApplied remembers what is in force after an Apply.
func (d *Differ[ID, V]) recordApplied(c *Changes[ID, V], want *proxy.State, changed *proxy.Changed, refused proxy.Refused) {
	node := d.nodeAfter(want, changed)
	for key := range refused {
		d.outdated[key] = true
	}
	for _, key := range changed.Rows {
		if refused[key] != nil {
			continue
		}
		delete(d.outdated, key)
		if sp := want.Rows[key]; sp != nil {
			d.rows[key] = Row{sp, node}
		} else {
			delete(d.rows, key)
		}
	}
	if changed.Node && d.mode.SameRows != nil { // otherwise no row depends on the node
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
		d.recordUse(id, u)
	}
}

// recordUse updates how many rows want a shared object.
func (d *Differ[ID, V]) recordUse(id ID, u *use[V]) {
	d.refs[id] += u.delta
	switch {
	case d.refs[id] > 0:
		delete(d.idle, id)
	case d.mode.Sharing(id) == Lingers:
		d.idle[id] = idle[V]{u.value, time.Now()}
	default:
		delete(d.refs, id)
	}
}

// evict removes the objects that have been idle for IdleTime, if there are more
// than MaxIdle. Those that cannot be removed now are kept for another IdleTime; the
// error says that it is not known what was removed.
func (d *Differ[ID, V]) evict(ctx context.Context) error {
	if len(d.idle) <= d.mode.MaxIdle {
		return nil
	}
	c := newChanges(&d.mode)
	for id, i := range d.idle {
		if time.Since(i.since) >= d.mode.IdleTime {
			c.setOld(id, i.value)
		}
	}
	if n, err := d.write(ctx, c, math.MaxInt); err != nil {
		if err = d.writeError(n, err); errors.Is(err, proxy.ErrNeedSync) {
			return err
		}
		for id := range c.index {
			d.idle[id] = idle[V]{d.idle[id].value, time.Now()}
		}
		return nil
	}
	for id := range c.index {
		delete(d.idle, id)
		delete(d.refs, id)
	}
	return nil
}

// Sync brings the kernel to the wanted state, whatever it had before. The rows it
// returns are refused and not in force.
func (d *Differ[ID, V]) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.rows = nil
	refused := proxy.Refused{}
	for {
		c := newChanges(&d.mode)
		err := d.sync(ctx, c, want, refused)
		c.done(err == nil)
		if err == nil {
			return refused, nil
		}
		if !c.addRefused(err, refused) {
			return nil, err
		}
	}
}

func (d *Differ[ID, V]) sync(ctx context.Context, c *Changes[ID, V], want *proxy.State, refused proxy.Refused) error {
	rest, empty, err := d.mode.List(ctx, want, c.setOld)
	if err != nil {
		return err
	}
	constant := d.renderConstant(c, want)
	d.refs, d.idle, d.claims = map[ID]int{}, map[ID]idle[V]{}, map[ID]claims[V]{}
	rows := make(map[proxy.PortKey]Row, len(want.Rows))
	for key := range d.syncOrder(want) {
		r := Row{want.Rows[key], want.Node}
		if d.renderRow(c, key, Row{}, r, refused); refused[key] == nil {
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
		d.renderHealthCheck(h, c.Add)
	}
	c.addShared(d.refs)
	c.addContested(d.claims)
	if d.rewritten = (proxy.Rewritten{}); !empty {
		d.rewritten = c.rewritten()
	}
	if _, err := d.write(ctx, c, math.MaxInt); err != nil {
		return err
	}
	for id, u := range c.uses {
		d.recordUse(id, u)
	}
	d.recordContested(c, refused)
	d.outdated = map[proxy.PortKey]bool{}
	d.rows, d.checks, d.node, d.constant = rows, map[proxy.HealthCheckKey]*proxy.HealthCheck{}, want.Node, constant
	maps.Copy(d.checks, want.HealthChecks)
	return nil
}

// stream writes the changes rendered so far, except for those that put them into
// effect, so that a first Sync never holds all changes in memory. It may only be used
// if no object in the kernel is in force: then rows may be written in any order.
func (d *Differ[ID, V]) stream(ctx context.Context, c *Changes[ID, V]) error {
	c.addShared(d.refs)
	if _, err := d.write(ctx, c, d.mode.Live); err != nil {
		return err
	}
	c.dropBelow(d.mode.Live)
	return nil
}
