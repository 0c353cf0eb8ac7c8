// Package conntrack ends UDP and SCTP flows that go where they should not go
// any more. The kernel translates the first packet of a flow and then follows
// its own memory, so a client that keeps sending would reach a dead endpoint,
// or nobody, for ever.
//
// The [Reconciler] is told what a dataplane wrote. For every frontend that a
// step concerns it compares the flows that the kernel tracks with the row:
//
//	the flow's endpoint still serves            stays, whatever the policies say now
//	its endpoint serves no more, or never did   goes
//	its destination is no frontend any more     goes, if it was translated
//	it was never translated, but would be now   goes
//
// It is told of a write before it begins, too: a flow that is right by the rows
// before or after stays while the write is under way, since the kernel may do
// either. What is watched is bounded, should flows be unreadable for long: then all
// frontends are checked together.
//
// Flows of TCP, flows to anything that neither is nor was a frontend of ours,
// and flows in other programs' zones are not touched. A NodePort is a
// frontend at the node's own addresses that take NodePorts only; a flow to an
// endpoint that has just left it came by such an address, be that here now or not.
//
// All this happens on a goroutine of its own: nobody waits for it, and what
// fails is tried again. The package is for dataplanes that translate by NAT; it
// knows neither Kubernetes objects nor which of them it is.
package conntrack
