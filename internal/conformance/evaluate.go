package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/netfilter"
	"sluice/internal/proxy"
)

// Evaluate compares what a node's rules do to a packet, for every choice that they may make, with
// what the table expects. The node knows its addresses beside those of the table's node.
func Evaluate(n netfilter.Node, p proxy.Packet, want Expect) error {
	if p.In != "" && p.Src.IsLoopback() && p.Src == p.Dst.Addr() {
		return nil // the packet does not leave its pod
	}
	own, more := lab.Config{}.LocalAddrs(), n.IsLocal
	n.IsLocal = func(a netip.Addr) bool {
		return slices.Contains(own, a) || more != nil && more(a) || p.SrcLocal && a == p.Src || p.DstLocal && a == p.Dst.Addr()
	}
	ends := n.Ends(netfilter.Packet{Protocol: uint8(p.Protocol), Src: p.Src, Dst: p.Dst, In: p.In})
	got := Expect{To: map[netip.AddrPort]bool{}}
	for i, e := range ends {
		v := map[netfilter.Verdict]proxy.Verdict{netfilter.Drop: proxy.Drop, netfilter.Reject: proxy.Reject}[e.Verdict]
		switch {
		case e.Verdict != netfilter.Accept:
		case e.Dst == p.Dst && !e.Masqueraded && !e.Socket.IsValid():
			v = proxy.Untouched
		default:
			v = proxy.Forward
			if masq, twice := got.To[e.Dst]; twice && masq != e.Masqueraded {
				return fmt.Errorf("%v is reached both masqueraded and not", e.Dst)
			}
			got.To[e.Dst] = e.Masqueraded
		}
		if i > 0 && v != got.Verdict {
			return fmt.Errorf("the rules lead to any of %s", describeEnds(ends))
		}
		got.Verdict = v
	}
	if !got.equal(want) {
		return fmt.Errorf("the rules lead to %s", describeEnds(ends))
	}
	return nil
}

func describeEnds(ends []netfilter.End) string {
	var out []string
	for _, e := range ends {
		switch e.Verdict {
		case netfilter.Drop:
			out = append(out, "drop")
		case netfilter.Reject:
			out = append(out, "reject")
		default:
			out = append(out, fmt.Sprintf("%v, masqueraded %t, listener %v", e.Dst, e.Masqueraded, e.Socket))
		}
	}
	return strings.Join(out, "; ")
}
