package nftables

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// localSlots is the first slot of a frontend's Local list; its Cluster list
// begins at zero.
const localSlots = 1 << 24

// sink takes what a row renders to.
type sink interface {
	element(s *nft.Set, e nft.Element)
	class(name string, build func() *chain) // a chain that rows share; its name says all
	own(c *chain)                           // a chain of this row
}

// render gives a row's elements and chains to a sink. It does not depend on
// anything but the row.
func (t *table) render(sp *proxy.ServicePort, out sink) {
	for _, f := range sp.Frontends {
		t.frontend(sp, f, out)
		switch {
		case f.Kind == proxy.ClusterIP:
			out.element(t.clusterIPs, nft.Element{Key: string(f.Addr.Addr().AsSlice())})
		case f.Kind == proxy.LoadBalancer && sp.AllowFrom != nil:
			t.restrict(sp, f, out)
		}
	}
	for _, list := range [][]proxy.Endpoint{sp.Cluster, sp.Local} {
		for _, e := range list {
			if e.Loops() {
				out.element(t.hairpins, nft.Element{Key: hairpinKey(sp.Key.Protocol, e.Addr)})
			}
		}
	}
	if sp.Affinity > 0 {
		for _, scope := range []proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal} {
			if len(sp.List(scope)) > 0 {
				out.own(t.affinityChain(sp, scope))
			}
		}
	}
}

// frontend renders one frontend: where its packets go, and what happens to
// those that go nowhere. Whether a ClusterIP's clients are masqueraded is a
// constant rule's business.
func (t *table) frontend(sp *proxy.ServicePort, f proxy.Frontend, out sink) {
	s := t.space(f.Kind)
	key := s.key(sp.Key.Protocol, f.Addr)
	anyNode := &proxy.Node{}
	near := sp.Route(f.Kind, proxy.ThisNode, anyNode)
	far := sp.Route(f.Kind, proxy.Elsewhere, anyNode)

	if len(near.To) > 0 {
		to := t.list(sp, s, near.Scope, out)
		t.slots(sp, s, key, near.Scope, out)
		switch {
		case f.Kind == proxy.ClusterIP:
		case near.Scope == far.Scope:
			to = t.masqueraded(sp, to, out)
		default:
			to = t.external(sp, to, s, out)
			if len(far.To) > 0 {
				local := t.list(sp, s, far.Scope, out)
				out.element(s.locals, nft.Element{Key: key, Verdict: nft.Verdict{Code: nft.Goto, Chain: local}})
				t.slots(sp, s, key, far.Scope, out)
			}
		}
		out.element(s.dispatch, nft.Element{Key: key, Verdict: nft.Verdict{Code: nft.Goto, Chain: to}})
	}
	if len(near.To) == 0 && s.byAddress && f.Kind != proxy.ClusterIP {
		// The address may be the node's own, and its port another Service's
		// NodePort: it must not go there.
		out.element(s.dispatch, nft.Element{Key: key, Verdict: nft.Verdict{Code: nft.Accept}})
	}
	if len(far.To) == 0 {
		out.element(s.empty, nft.Element{Key: key, Verdict: emptyVerdict(far.Otherwise)})
	}
}

// list returns the chain that chooses an endpoint of a list.
func (t *table) list(sp *proxy.ServicePort, s *space, scope proxy.Scope, out sink) string {
	if sp.Affinity > 0 {
		return affinityName(sp.Key, scope)
	}
	n := uint32(len(sp.List(scope)))
	name, offset := fmt.Sprintf("%s-%d", s.prefix, n), uint32(0)
	if scope == proxy.ScopeLocal {
		name, offset = fmt.Sprintf("%sl-%d", s.prefix, n), localSlots
	}
	out.class(name, func() *chain {
		return t.chain(name, t.rule().frontend(s).slot(n, offset).dnatBy(s.endpoints).as("choose an endpoint"))
	})
	return name
}

// masqueraded returns the chain that marks and then goes on to another.
func (t *table) masqueraded(sp *proxy.ServicePort, to string, out sink) string {
	name := "masq-" + to
	wrap(sp, out, name, func() *chain {
		return t.chain(name, t.rule().setMark(true).as("masquerade"), t.rule().goTo(to).as("choose an endpoint"))
	})
	return name
}

// external returns the chain of externalTrafficPolicy Local: clients from
// elsewhere do not come back from the local list, our pods and the node go on.
func (t *table) external(sp *proxy.ServicePort, to string, s *space, out sink) string {
	name, local := "ext-"+to, localOnly
	if !s.byAddress {
		local = nodePortLocal
		if sp.Affinity > 0 {
			name = "ext-np-" + to // both spaces share this list's chain
		}
	}
	wrap(sp, out, name, func() *chain {
		return t.chain(name,
			t.rule().jump(local).as("clients from elsewhere"),
			t.rule().jump(markNode).as("the node"),
			t.rule().goTo(to).as("choose an endpoint"))
	})
	return name
}

// wrap gives a sink the chain before a list's: shared as the list's chain is,
// or the row's own.
func wrap(sp *proxy.ServicePort, out sink, name string, build func() *chain) {
	if sp.Affinity > 0 {
		out.own(build())
		return
	}
	out.class(name, build)
}

// slots gives the endpoints of a list their slots under a frontend.
func (t *table) slots(sp *proxy.ServicePort, s *space, key string, scope proxy.Scope, out sink) {
	if sp.Affinity > 0 {
		return // the row's own chain names its endpoints
	}
	var first uint32
	if scope == proxy.ScopeLocal {
		first = localSlots
	}
	for i, e := range sp.List(scope) {
		slot := binary.NativeEndian.AppendUint32(make([]byte, 0, 4), first+uint32(i))
		out.element(s.endpoints, nft.Element{Key: key + string(slot), Data: endpointData(e.Addr)})
	}
}

// restrict lists who may use a LoadBalancer frontend.
func (t *table) restrict(sp *proxy.ServicePort, f proxy.Frontend, out sink) {
	key := t.addresses.key(sp.Key.Protocol, f.Addr)
	out.element(t.restricted, nft.Element{Key: key})
	for _, p := range sp.AllowFrom {
		out.element(t.allowed, nft.Element{
			Key:    key + string(p.Masked().Addr().AsSlice()),
			KeyEnd: key + string(lastAddr(p).AsSlice()),
		})
	}
}

func emptyVerdict(v proxy.Verdict) nft.Verdict {
	if v == proxy.Drop {
		return nft.Verdict{Code: nft.Drop}
	}
	return nft.Verdict{Code: nft.Goto, Chain: refuse}
}

func endpointData(a netip.AddrPort) string {
	return string(appendPort(append(make([]byte, 0, 20), a.Addr().AsSlice()...), a.Port()))
}

func hairpinKey(p proxy.Protocol, a netip.AddrPort) string {
	addr := a.Addr().AsSlice()
	b := append(append(make([]byte, 0, 40), addr...), addr...)
	b = append(b, byte(p), 0, 0, 0)
	return string(appendPort(b, a.Port()))
}

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// hash returns a number that stands for a row and one of its lists, the same
// after a restart.
func hash(k proxy.PortKey, scope proxy.Scope) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q %q %d %d %d", k.Namespace, k.Name, k.Port, k.Protocol, k.Family, scope)
	return h.Sum64()
}
