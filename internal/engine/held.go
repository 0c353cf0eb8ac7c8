package engine

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// A row that a Sync refuses is absent after it, but one whose change Apply refuses keeps
// its earlier version. So that a Sync takes no row out of the kernel because of its new
// version, it writes the version that is in force, and Apply then changes it.

// heldRows returns the dirty rows that a full sync is to write in the version that is in
// force, and these versions. If the last sync failed, it is certain for refused rows only
// which version that is. A row is not held if another row gets one of its frontends.
func (t *table) heldRows(failed bool) map[proxy.PortKey]*proxy.ServicePort {
	held := map[proxy.PortKey]*proxy.ServicePort{}
	for k, r := range t.dirty {
		row, refused := t.want.Rows[k], r.Refused != ""
		if row != nil && r.InForce != nil && r.InForce != row && !r.partial && (refused || !failed) {
			held[k] = r.InForce
		}
	}
	for t.releaseTaken(held) {
	}
	return held
}

// releaseTaken removes the rows from held that have a frontend which a changed row gets
// that is not held itself. It reports whether there were any.
func (t *table) releaseTaken(held map[proxy.PortKey]*proxy.ServicePort) bool {
	type claim struct {
		addr     netip.AddrPort
		protocol proxy.Protocol
	}
	taken := map[claim]bool{}
	for k := range t.dirty {
		if row := t.want.Rows[k]; row != nil && held[k] == nil {
			for _, f := range row.Frontends {
				taken[claim{f.Addr, k.Protocol}] = true
			}
		}
	}
	before := len(held)
	maps.DeleteFunc(held, func(k proxy.PortKey, row *proxy.ServicePort) bool {
		return slices.ContainsFunc(row.Frontends, func(f proxy.Frontend) bool { return taken[claim{f.Addr, k.Protocol}] })
	})
	return len(held) < before
}

// sync brings everything in the kernel to the wanted state. It records in w which of the
// refused rows keep an earlier version.
func (e *Engine) sync(ctx context.Context, w *work) (proxy.Refused, error) {
	if len(w.held) == 0 {
		return e.dataplane.Sync(ctx, w.state)
	}
	state := *w.state
	state.Rows = maps.Clone(state.Rows)
	maps.Copy(state.Rows, w.held)
	absent, err := e.dataplane.Sync(ctx, &state)
	if err != nil {
		return nil, err
	}
	more, err := e.dataplane.Apply(ctx, w.state, &proxy.Changed{Rows: slices.SortedFunc(maps.Keys(w.held), proxy.ComparePortKeys)})
	switch {
	case errors.Is(err, proxy.ErrNeedSync): // for example because a row gets a frontend that a refused row keeps
		return e.dataplane.Sync(ctx, w.state)
	case err != nil:
		return nil, err
	}
	refused := proxy.Refused{}
	for k, why := range absent {
		if w.held[k] == nil {
			refused[k] = why
		}
	}
	w.kept = map[proxy.PortKey]bool{}
	for k, why := range more {
		refused[k], w.kept[k] = why, absent[k] == nil
	}
	return refused, nil
}
