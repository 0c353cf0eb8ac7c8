package conformance

import (
	"slices"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

// TranslatedShare returns the share of the flows of unbound sockets that must be translated at the
// socket: those to endpoints where the result is the same as with the rules. If it is 0, none may
// be translated, because a rule would be bypassed or the endpoint would see another client address.
func TranslatedShare(s *proxy.State, p proxy.Packet) (share float64) {
	o := s.Outcome(p)
	if o.Verdict != proxy.Forward || p.Protocol == proxy.SCTP || o.Row.Affinity > 0 ||
		o.Row.Balancing != proxy.BalanceDefault && o.Row.Balancing != proxy.Random {
		return 0
	}
	if p.DstLocal && o.Frontend.Kind != proxy.NodePort || o.Route.From != nil {
		return 0
	}
	// A socket of the node uses the source address of the route to the endpoint, as if it were
	// masqueraded. A pod must not appear as its own client.
	node := p.In == "" && o.Origin == proxy.ThisNode
	if !node && p.In != lab.Bridge {
		return 0
	}
	fit := 0
	for _, b := range o.Backends {
		again := p // the translated packet, which the rules must leave untouched
		again.Dst = b.Addr
		again.DstLocal = slices.Contains(lab.Config{}.LocalAddrs(), b.Addr.Addr()) || p.SrcLocal && b.Addr.Addr() == p.Src
		if b.Masquerade == node && s.Outcome(again).Verdict == proxy.Untouched {
			fit++
		}
	}
	return float64(fit) / float64(len(o.Backends))
}
