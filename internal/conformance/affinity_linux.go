package conformance

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// affinityClient is a client of a row with session affinity, together with the endpoint list that
// it uses.
type affinityClient struct {
	src   netip.Addr
	row   proxy.PortKey
	scope proxy.Scope
}

// binding is the last connection of a client: its case, the endpoint that it reached, and when.
type binding struct {
	*Case
	to   netip.AddrPort
	last time.Time
}

// affinityClientOf returns the client of a case, if a state forwards it with session affinity.
func affinityClientOf(s *proxy.State, c *Case) (affinityClient, bool) {
	o := s.Outcome(packet(c))
	if o.Verdict != proxy.Forward || o.Row.Affinity == 0 {
		return affinityClient{}, false
	}
	return affinityClient{c.Src, o.Row.Key, o.Route.Scope}, true
}

// caseRun prepares the execution of a case.
func (r *run) caseRun(c *Case) *caseRun {
	s := r.resolver.State()
	out := &caseRun{Case: c, want: r.want(c), wantTranslated: TranslatedShare(s, packet(c))}
	if out.client, out.sticky = affinityClientOf(s, c); out.sticky {
		out.allowed = r.allowedEndpoints(out.client)
	}
	return out
}

// other returns the same client for the row's other endpoint list.
func (c affinityClient) other() affinityClient { return affinityClient{c.src, c.row, 1 - c.scope} }

// allowedEndpoints returns the endpoints that session affinity permits for a client: the one it
// last reached through this list, or else the one it last reached through the other list, if this
// list has it too. Nil means any.
func (r *run) allowedEndpoints(who affinityClient) []netip.AddrPort {
	b, own := r.bindings[who]
	if !own {
		b = r.bindings[who.other()]
	}
	there := func(e proxy.Endpoint) bool { return e.Addr == b.to }
	switch {
	case !slices.ContainsFunc(r.resolver.State().Rows[who.row].List(who.scope), there):
		return nil
	case r.d.Mode == "iptables": // each endpoint remembers its clients, shared by both lists
		return slices.Concat(r.sentTo[who], r.sentTo[who.other()])
	case own:
		return []netip.AddrPort{b.to}
	default: // an older binding of this list may still exist
		return append(slices.Clone(r.sentTo[who]), b.to)
	}
}

// repeatClients returns the cases of earlier phases whose clients are still bound, to be repeated
// in this phase. A client that has used one list also connects through the other, if a frontend
// leads there.
func (r *run) repeatClients(phase string) (out []*caseRun) {
	for who, b := range r.bindings {
		c := *b.Case
		c.ID, c.Phase = fmt.Sprintf("%s-again-%s", phase, c.ID), phase
		if now, ok := affinityClientOf(r.resolver.State(), &c); ok && now == who {
			out = append(out, r.caseRun(&c))
		}
		if _, did := r.bindings[who.other()]; did {
			continue // repeated through that list
		}
		if c := r.viaOtherList(who, c); c != nil {
			c.ID = fmt.Sprintf("%s-across-%s", phase, b.ID)
			out = append(out, r.caseRun(c))
		}
	}
	r.churn.ReturningClients += len(out)
	return out
}

// viaOtherList returns the case with a frontend that leads to the row's other list, or nil if there
// is none. Clients whose source address is valid for some destinations only are left out.
func (r *run) viaOtherList(who affinityClient, c Case) *Case {
	s := r.resolver.State()
	if s.Rows[who.row] == nil || c.From == FromVIP || c.From == FromLocalhost || c.From == FromInside {
		return nil
	}
	for _, f := range s.Rows[who.row].Frontends {
		c.Dst, c.DPort = f.Addr.Addr(), f.Addr.Port()
		if f.Kind == proxy.NodePort {
			c.Dst = netip.MustParseAddr(clients[FromNode].addrs[who.row.Family])
		}
		if now, ok := affinityClientOf(s, &c); ok && now == who.other() && r.allowedEndpoints(now) != nil {
			return &c
		}
	}
	return nil
}

// recordBindings records which endpoints clients reached.
func (r *run) recordBindings(runs []*caseRun) {
	for _, c := range runs {
		if !c.sticky || len(c.answers) == 0 {
			continue
		}
		to := c.answers[len(c.answers)-1]
		r.bindings[c.client] = binding{c.Case, to, time.Now()}
		if !slices.Contains(r.sentTo[c.client], to) {
			r.sentTo[c.client] = append(r.sentTo[c.client], to)
		}
	}
}

// dropBindings forgets the clients whose binding may legitimately be gone. If more than one of the
// objects that make up a list changed on the way through worlds, an endpoint may have been absent
// for a moment.
func (r *run) dropBindings(worlds ...*World) {
	for who, b := range r.bindings {
		row := r.resolver.State().Rows[who.row]
		there := func(e proxy.Endpoint) bool { return e.Addr == b.to }
		changes := 0
		for i := range worlds[1:] {
			changes += differences(worlds[i].sources(who.row), worlds[i+1].sources(who.row))
		}
		if changes > 1 || row == nil || time.Since(b.last) >= row.Affinity/2 || !slices.ContainsFunc(row.List(who.scope), there) {
			delete(r.bindings, who)
		}
	}
}

// sources returns the objects that the lists of a row are made of, by name.
func (w *World) sources(row proxy.PortKey) map[string]any {
	out := map[string]any{"node": w.NodeLabels}
	for _, s := range w.Services {
		if key(s) == row.Namespace+"/"+row.Name {
			out["service"] = s.Spec
		}
	}
	for _, s := range w.Slices {
		if s.Namespace == row.Namespace && s.Labels[discoveryv1.LabelServiceName] == row.Name && v1.IPFamily(s.AddressType) == v1.IPFamily(row.Family.String()) {
			out["slice "+s.Name] = []any{s.Ports, s.Endpoints}
		}
	}
	return out
}

// differences returns how many objects were added, removed or changed.
func differences(a, b map[string]any) (n int) {
	for name := range b {
		if !reflect.DeepEqual(a[name], b[name]) {
			n++
		}
	}
	for name := range a {
		if _, there := b[name]; !there {
			n++
		}
	}
	return n
}
