package nftables

import "sluice/internal/proxy"

// stepSize is the most elements that Apply writes in one batch, if it can help
// it: the kernel holds a lock for the length of a batch.
const stepSize = 50_000

// steps cuts a large delta into smaller ones that may be taken one after the
// other. A frontend that moves from one row to another stays within the first
// step, since the new owner's element cannot be written before the old one's is
// gone, and traffic must not see a gap between the two.
func steps(d *proxy.Delta, size int) []*proxy.Delta {
	if weight(d) <= size {
		return []*proxy.Delta{d}
	}
	moved := movedRows(d)
	first := &proxy.Delta{Node: d.Node, CIDRs: d.CIDRs}
	out := []*proxy.Delta{first}
	rest := &proxy.Delta{}
	for _, r := range d.Removes {
		to := rest
		if moved[r.Key] {
			to = first
		}
		to.Removes = append(to.Removes, r)
		rest, out = cut(rest, out, size)
	}
	for _, u := range d.Upserts {
		to := rest
		if moved[u.New.Key] {
			to = first
		}
		to.Upserts = append(to.Upserts, u)
		rest, out = cut(rest, out, size)
	}
	if !rest.Empty() {
		out = append(out, rest)
	}
	if first.Empty() {
		out = out[1:]
	}
	return out
}

// cut closes a step that is full.
func cut(rest *proxy.Delta, out []*proxy.Delta, size int) (*proxy.Delta, []*proxy.Delta) {
	n := len(rest.Removes) + len(rest.Upserts)
	if n == 0 || n%64 != 0 || weight(rest) < size {
		return rest, out
	}
	return &proxy.Delta{}, append(out, rest)
}

// weight estimates the number of elements that a delta concerns.
func weight(d *proxy.Delta) int {
	n := 0
	row := func(sp *proxy.ServicePort) {
		if sp != nil {
			n += len(sp.Frontends) * (2 + len(sp.Cluster) + len(sp.Local))
		}
	}
	for _, r := range d.Removes {
		row(r)
	}
	for _, u := range d.Upserts {
		row(u.Old)
		row(u.New)
	}
	return n
}

// claim is a frontend as two rows could have it.
type claim struct {
	proxy.Frontend
	proxy.Protocol
}

// movedRows returns the rows between which a frontend moves.
func movedRows(d *proxy.Delta) map[proxy.PortKey]bool {
	had := map[claim]proxy.PortKey{}
	note := func(sp *proxy.ServicePort) {
		for _, f := range sp.Frontends {
			had[claim{f, sp.Key.Protocol}.anyKind()] = sp.Key
		}
	}
	for _, r := range d.Removes {
		note(r)
	}
	for _, u := range d.Upserts {
		if u.Old != nil {
			note(u.Old)
		}
	}
	moved := map[proxy.PortKey]bool{}
	for _, u := range d.Upserts {
		for _, f := range u.New.Frontends {
			if from, ok := had[claim{f, u.New.Key.Protocol}.anyKind()]; ok && from != u.New.Key {
				moved[from], moved[u.New.Key] = true, true
			}
		}
	}
	return moved
}

// anyKind forgets the kind of an address: two kinds cannot have the same one.
func (c claim) anyKind() claim {
	if c.Kind != proxy.NodePort {
		c.Kind = proxy.ClusterIP
	}
	return c
}
