// Package nodeportrelay serves NodePorts at [::1], TCP and UDP, by relaying connections
// and datagrams to endpoints.
//
// Rules cannot: the kernel accepts packets for ::1 from the link lo only, so it drops the
// replies of endpoints once they are translated back. A local route for ::1 on each link
// would let them in, but not where bridges pass packets to netfilter, which translates
// them before IPv6 sees them and drops them as packets from the network to loopback.
//
//	client at ::1 ──> socket at [::1]:NodePort ──> socket of the node ──> endpoint
//
// The package knows rows, and neither rules nor modes.
package nodeportrelay
