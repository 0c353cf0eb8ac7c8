// Package traffic counts connections, bytes and packets by Service port and by
// endpoint, in the same way in every mode.
//
// Flows that connection tracking translates are counted there: when a flow ends,
// the kernel reports what it carried; flows that are still open are read with a
// dump when the counts are requested.
//
//	ended flows (events)  +  live flows (a dump)  =  all flows
//
// So no state is kept per flow, and nothing is added to the path of a packet. A
// flow belongs to the row whose frontend its client sent to, and to the endpoint
// that replies. What a mode counts itself ([proxy.Metered]) is added: connections
// that connection tracking does not translate, and refused packets.
//
// Counts never decrease while their row exists, and are removed with it. A flow
// that ends during a dump may be counted as live, as ended, or as both, and a flow
// that began before we listened may end without an event; [meter.finishDump] corrects for
// both.
//
// However many callers ask, flows are dumped only once in a while, and less often
// the more there are, so that counting takes a few percent of one CPU at most. The
// package knows neither Kubernetes objects nor the mode.
package traffic
