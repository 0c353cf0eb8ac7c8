package userspace

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"sluice/internal/balance"
	"sluice/internal/conformance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/netfilter"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
)

// evaluated is a dataplane whose rules and index are evaluated in memory. It has no sockets.
type evaluated struct {
	*Dataplane
	fake *nfttest.Fake
}

func newEvaluated() *evaluated {
	o, fake := usualPorts(), nfttest.NewFake()
	return &evaluated{&Dataplane{
		Dataplane: o.New(fake, mode.Settings{MasqueradeBit: 14}), sockets: o.Sockets, listeners: []*listener{},
		server: &server{index: balance.NewIndex()},
	}, fake}
}

// relay sends a packet that a listener gets to an endpoint.
func (e *evaluated) relay(p *netfilter.Packet, choose netfilter.Choose) bool {
	s := e.server.index.Find(proxy.Protocol(p.Protocol), p.Dst)
	for scope, ports := range e.sockets.Ports {
		masquerade := slices.Index(ports[:], p.Socket.Port())
		if masquerade < 0 || s == nil {
			continue
		}
		var list []proxy.Endpoint
		var tried []netip.AddrPort
		for x, ok := s.Choose(p.Src, proxy.Scope(scope), nil); ok; x, ok = s.Choose(p.Src, proxy.Scope(scope), tried) {
			list, tried = append(list, x), append(tried, x.Addr)
		}
		if len(list) == 0 {
			return false
		}
		slices.SortFunc(list, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
		to := list[choose(uint32(len(list)))]
		p.Dst, p.Masqueraded = to.Addr, e.server.hides(p.Src, to, masquerade)
	}
	return false
}

// Judge implements [conformance.ModelRun].
func (e *evaluated) Judge(_ *proxy.State, p proxy.Packet, want conformance.Expect) error {
	n := netfilter.Node{Rules: e.fake, SocketMark: mode.SocketMark, Deliver: e.relay}
	if p.Protocol != proxy.SCTP || want.Verdict == proxy.Untouched {
		return conformance.Evaluate(n, p, want)
	}
	var errs []error // the mode refuses SCTP: whatever happens, no endpoint gets the packet
	for _, v := range []proxy.Verdict{proxy.Untouched, proxy.Drop, proxy.Reject} {
		err := conformance.Evaluate(n, p, conformance.Expect{Verdict: v})
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Objects implements [conformance.ModelRun] with the index; package nftables compares rules.
func (e *evaluated) Objects() (out []string) {
	keys := e.server.index.Keys()
	slices.SortFunc(keys, proxy.ComparePortKeys)
	for _, k := range keys {
		out = append(out, e.server.index.Get(k).Row().String())
	}
	return out
}

var model = conformance.Model{Mode: "nftables", Open: func() conformance.ModelRun { return newEvaluated() }}

// TestModel evaluates rules and index for the whole packet table, without a kernel.
func TestModel(t *testing.T) { conformance.RunModel(t, model) }

// TestRandomModel does so for random states and packets.
func TestRandomModel(t *testing.T) { conformance.RunRandomModel(t, model, 1, 100) }

// TestPolicyModel does so for every combination that policy depends on.
func TestPolicyModel(t *testing.T) { conformance.RunPolicyModel(t, model) }
