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

// affinityClient is a client that session affinity holds for, and the list of a row that it
// is sent to one of.
type affinityClient struct {
	src   netip.Addr
	row   proxy.PortKey
	scope proxy.Scope
}

// binding is how a client came last, and whom it was sent to.
type binding struct {
	*Case
	to   netip.AddrPort
	last time.Time
}

// affinityClientOf returns the client of a case, if a state has it remembered.
func affinityClientOf(s *proxy.State, c *Case) (affinityClient, bool) {
	o := s.Outcome(packet(c))
	if o.Verdict != proxy.Forward || o.Row.Affinity == 0 {
		return affinityClient{}, false
	}
	return affinityClient{c.Src, o.Row.Key, o.Route.Scope}, true
}

// caseRun returns a case that is to be played.
func (r *run) caseRun(c *Case) *caseRun {
	s := r.resolver.State()
	out := &caseRun{Case: c, want: r.want(c), wantTranslated: translatedShare(s, c)}
	if out.client, out.sticky = affinityClientOf(s, c); out.sticky {
		out.allowed = r.allowedEndpoints(out.client)
	}
	return out
}

// other is the same client by the row's other list.
func (c affinityClient) other() affinityClient { return affinityClient{c.src, c.row, 1 - c.scope} }

// allowedEndpoints returns the endpoints that a client must be sent to one of: the one that it had
// of this list, or else that it had of the other one and this one has too. Nil: any.
func (r *run) allowedEndpoints(who affinityClient) []netip.AddrPort {
	b, own := r.bindings[who]
	if !own {
		b = r.bindings[who.other()]
	}
	there := func(e proxy.Endpoint) bool { return e.Addr == b.to }
	switch {
	case !slices.ContainsFunc(r.resolver.State().Rows[who.row].List(who.scope), there):
		return nil
	case r.d.Mode == "iptables": // in which endpoints remember clients, and one that is met by two lists is either's
		return slices.Concat(r.sentTo[who], r.sentTo[who.other()])
	case own:
		return []netip.AddrPort{b.to}
	default: // an older one of this list may still be remembered
		return append(slices.Clone(r.sentTo[who]), b.to)
	}
}

// repeatClients returns the cases of earlier phases whose clients are still remembered. Each
// comes once more, as of this phase, and by the row's other list if it can.
func (r *run) repeatClients(phase string) (out []*caseRun) {
	for who, b := range r.bindings {
		c := *b.Case
		c.ID, c.Phase = fmt.Sprintf("%s-again-%s", phase, c.ID), phase
		if now, ok := affinityClientOf(r.resolver.State(), &c); ok && now == who {
			out = append(out, r.caseRun(&c))
		}
		if _, did := r.bindings[who.other()]; did {
			continue // and comes again by that one
		}
		if c := r.viaOtherList(who, c); c != nil {
			c.ID = fmt.Sprintf("%s-across-%s", phase, b.ID)
			out = append(out, r.caseRun(c))
		}
	}
	r.churn.ReturningClients += len(out)
	return out
}

// viaOtherList returns a client's case by a frontend that leads to the row's other list, or
// nil if there is none. Clients with an address that holds for some packets only have none.
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

// recordBindings notes where clients were sent.
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

// dropBindings forgets the clients that may have been sent elsewhere since. Where more than
// one of the objects changed that a list is made of, on the way by some worlds, an
// endpoint may have left it for a moment.
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

// sources is what the lists of a row are made of, by object.
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

// differences returns how many objects are not the same.
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
