// Package lab makes a small cluster network out of network namespaces and
// sends real packets through it: a node with its pods, the pods of
// other nodes, and the outside world.
//
//	                     +--------------------- node ----------------------+
//	outside ---- eth0 ---| eth0 (default route)                      cni0  |--- eth0 --- pod
//	(answers for every   |                                          transit|--- eth0 --- pod on another node
//	 address there is)   +-------------------------------------------------+
//
// Every host but the node has the node as its only neighbour, so each packet
// and each answer to it passes the node. The links' own addresses differ from
// those of eth0, so that an endpoint can tell a masqueraded connection of the
// node from one that was left alone.
//
// The package knows nothing of Services or of any way to program a kernel; it
// only says who answered a connection and which client it saw. Nothing of the
// machine's own network is touched, and all of it disappears with the process.
package lab
