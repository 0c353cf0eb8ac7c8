// Package ipvs lets the kernel's IP virtual servers (IPVS) choose endpoints.
//
// Each frontend is a virtual server; its real servers are the endpoints for
// clients elsewhere. The rules of package nftables, in a table of their own, do
// everything else: they filter clients by source range, answer for Services
// without endpoints, mark packets for masquerading, and choose the endpoint where
// a client on this node uses another list. The path of a connection's first
// packet:
//
//	prerouting / output
//	  rules              client not allowed: drop; mark for masquerade
//	                     client that IPVS serves: left as it is; to a NodePort:
//	                       translated to the alias address
//	                     any other client: choose an endpoint
//	routing              frontend addresses and the alias are local: they are on link kube-ipvs0
//	input                rules: no endpoint, or another port of a frontend's address: reject or drop
//	                     IPVS: the virtual server at that address chooses a real server
//	output, postrouting  rules: masquerade
//
// A virtual server is ours if its address is on our link. The link has the name
// that kube-proxy gives it, so that each proxy takes over from the other; its
// note (ip link's alias) records the values that sysctls had before us. The kernel does not announce changes
// to IPVS, so Sync compares everything once per sync period.
//
// Addresses and servers are added before the rules send packets to them, and
// removed after the rules no longer do. A real server of TCP that is removed has
// weight 0 until its connections end ([Dataplane.Run]); its virtual server is
// removed after that. A real server of UDP or SCTP is removed together with its
// flows, unless the row lists it as draining. When the last frontend at an address
// is removed, everything at that address is removed at once.
//
// Package differ compares servers. An address is routed to this host with the first
// server that needs it, added to the link soon after ([Dataplane.Run]), and removed with
// the last.
package ipvs
