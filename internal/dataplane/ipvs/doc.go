// Package ipvs has the kernel's IP virtual servers choose endpoints.
//
// A frontend is a virtual server, the endpoints that clients elsewhere take are
// its real servers. Everything else is done by the rules of package nftables
// beneath, in a table of their own: who is let in, what happens without an
// endpoint, who is masqueraded, and which endpoint a client on this node gets
// that takes another list. The path of a connection's first packet:
//
//	prerouting / output
//	  rules              client not allowed: drop; mark for masquerade
//	                     client that IPVS takes: left as it is, but for a NodePort,
//	                       whose address becomes that of our alias
//	                     any other client: choose an endpoint
//	routing              frontend addresses and aliases are local: they are on link kube-ipvs0
//	input                rules: no endpoint, another port of a frontend's address: refuse, drop
//	                     IPVS: the virtual server at that address chooses a real server
//	output, postrouting  rules: masquerade
//
// A virtual server is ours if its address is on our link, which carries the name
// that kube-proxy gives it: so we take over from it, and it from us. Its alias
// notes what settings of the host were before us. Nobody tells what others do to
// IPVS: Sync compares, as often as the configuration says.
//
// Order: addresses and servers come before the rules lead to them and go after
// the rules do no more. A real server of TCP that goes keeps its connections:
// its weight is 0 until it has none ([Dataplane.Run]), and a virtual server goes after
// those. Those of UDP and SCTP go with their flows, unless the row says that they are
// draining. With the last frontend at an address all goes at once.
//
// Package differ compares servers; addresses come with the first server that
// needs them and go with the last.
package ipvs
