package explain

import (
	"slices"

	"sluice/internal/proxy"
)

// outcome returns the oracle's outcome of the packet for some rows, corrected where
// the mode does something else.
func (x *explanation) outcome(rows map[proxy.PortKey]*proxy.ServicePort) proxy.Outcome {
	state := x.world.Resolver.State()
	node, p := *state.Node, x.packet
	if x.inHNS() { // HNS has one list of endpoints per frontend, that for clients elsewhere.
		node.LocalPods, p.SrcLocal = proxy.LocalTrafficDetector{}, false
	}
	o := (&proxy.State{Rows: rows, Node: &node, CIDRs: state.CIDRs}).Outcome(p)
	switch {
	case x.inHNS() && o.Verdict != proxy.Forward:
		o.Verdict = proxy.Untouched // HNS can neither reject nor drop.
	case x.world.Mode == "ipvs" && o.Reason == proxy.NoSuchFrontend && x.isFrontendAddress(rows):
		o.Verdict = proxy.Reject
	}
	return o
}

// inHNS reports whether the Host Networking Service of Windows forwards packets.
func (x *explanation) inHNS() bool { return x.world.Mode == "kernelspace" }

// isFrontendAddress reports whether the destination is an address of one of the rows
// and not of the node itself. Mode ipvs assigns these addresses to the node, and
// rejects packets to ports of them that no row has.
func (x *explanation) isFrontendAddress(rows map[proxy.PortKey]*proxy.ServicePort) bool {
	has := func(f proxy.Frontend) bool { return f.Addr.Addr() == x.packet.Dst.Addr() }
	for _, row := range rows {
		if !x.packet.DstLocal && slices.ContainsFunc(row.Frontends, has) {
			return true
		}
	}
	return false
}

// noteHNS adds a note about what the Host Networking Service does differently.
func (x *explanation) noteHNS() {
	switch {
	case !x.inHNS():
	case x.now.Verdict == proxy.Forward:
		x.note("mode kernelspace handles all clients like clients elsewhere, and HNS decides whether endpoints see their address: " +
			"on an overlay network they see the source VIP, unless direct server return is on")
	case x.now.Reason != proxy.NoSuchFrontend && x.now.Reason != proxy.NodePortClosedHere:
		x.note("mode kernelspace can neither reject nor drop: ordinary routing applies, as if there were no Service")
	}
}
