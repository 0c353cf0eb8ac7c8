// Package conntrack ends stale UDP and SCTP flows. The kernel applies NAT rules
// to the first packet of a flow only and follows the connection tracking entry
// afterwards, so without help a client that keeps sending would reach a removed
// endpoint, or none, for ever.
//
// The engine tells the [Reconciler] what a dataplane wrote. For every frontend
// affected by a step, the Reconciler compares the flows tracked by the kernel with the row:
//
//	the flow's endpoint still serves                kept, whatever the policies say now
//	its endpoint no longer serves, or never did     ended
//	its destination is no longer a frontend         ended, if it was translated
//	it was not translated, but would be now         ended
//
// The Reconciler also learns of a write before it begins. While the write is in
// progress the kernel may follow the old rows or the new ones, so a flow that is
// right under either is kept. The set of watched frontends is bounded, in case
// flows cannot be read for a long time; beyond the bound all frontends are
// checked together.
//
// TCP flows, flows to addresses that neither are nor were our frontends, and
// flows in other conntrack zones are not touched. A NodePort is a frontend only
// at the node's own addresses that accept NodePorts. A flow to an endpoint that
// has just been removed from a NodePort counts as a flow of that NodePort even if
// its destination is not, or no longer, an address of this node.
//
// All this runs on its own goroutine: no caller waits for it, and failures are
// retried. The package serves dataplanes that translate by NAT; it knows neither
// Kubernetes objects nor the mode.
package conntrack
