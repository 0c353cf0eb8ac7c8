package explain

import (
	"slices"

	"sluice/internal/proxy"
)

// outcome asks the oracle about some rows, and says instead what the mode does where
// that is something else.
func (x *explanation) outcome(rows map[proxy.PortKey]*proxy.ServicePort) proxy.Outcome {
	state := x.world.Resolver.State()
	node, p := *state.Node, x.packet
	if x.inHNS() { // It has one list for all clients of an address: that of those elsewhere.
		node.LocalPods, p.SrcLocal = proxy.LocalTrafficDetector{}, false
	}
	o := (&proxy.State{Rows: rows, Node: &node, CIDRs: state.CIDRs}).Outcome(p)
	switch {
	case x.inHNS() && o.Verdict != proxy.Forward:
		o.Verdict = proxy.Untouched // It can neither refuse nor drop.
	case x.world.Mode == "ipvs" && o.Reason == proxy.NoSuchFrontend && x.heldFor(rows):
		o.Verdict = proxy.Reject
	}
	return o
}

// inHNS reports whether the Host Networking Service of Windows forwards.
func (x *explanation) inHNS() bool { return x.world.Mode == "kernelspace" }

// heldFor reports whether rows have the packet be for the node, as mode ipvs does with
// all addresses of Services. On other ports it refuses.
func (x *explanation) heldFor(rows map[proxy.PortKey]*proxy.ServicePort) bool {
	has := func(f proxy.Frontend) bool { return f.Addr.Addr() == x.packet.Dst.Addr() }
	for _, row := range rows {
		if !x.packet.DstLocal && slices.ContainsFunc(row.Frontends, has) {
			return true
		}
	}
	return false
}

// noteHNS says how the Host Networking Service differs from what was said.
func (x *explanation) noteHNS() {
	switch {
	case !x.inHNS():
	case x.now.Verdict == proxy.Forward:
		x.note("mode kernelspace takes all clients for ones elsewhere, and HNS decides who sees their address: " +
			"on an overlay network the source VIP stands for it, unless direct server return shows it")
	case x.now.Reason != proxy.NoSuchFrontend && x.now.Reason != proxy.NodePortClosedHere:
		x.note("mode kernelspace can neither refuse nor drop: ordinary routing applies, as if there were no Service")
	}
}
