// Package traffic counts connections, bytes and packets by Service port and by
// endpoint, the same in every mode.
//
// What connection tracking translates is counted there: a flow that ends is told
// with what it carried, and those that live are looked at when somebody asks.
//
//	ended flows (events)  +  live flows (a dump)  =  all of them
//
// So nothing is remembered of a single flow, and nothing is added to the path of
// a packet. A flow belongs to the row whose frontend its client sent to, and to
// the endpoint that answers. What a mode counts by itself ([proxy.Metered]) is
// added: connections that are not translated by connection tracking, and packets
// that are refused.
//
// Counts never shrink while their row is there, and go with it. A dump may miss a
// flow that ends meanwhile, and then has it as ended; a flow that began before we
// listened may end without being told. [meter.settle] sorts this out.
//
// However many ask, flows are looked at once in a while only, and the more there
// are, the longer the pause: a few percent of one CPU at most. The package knows
// neither Kubernetes objects nor the mode.
package traffic
