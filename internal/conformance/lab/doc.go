// Package lab builds a small cluster network from network namespaces and sends real packets through
// it: a node with its pods, the pods of other nodes, and the outside.
//
//	                     +--------------------- node ----------------------+
//	outside ---- eth0 ---| eth0 (default route)                      cni0  |--- eth0 --- pod
//	(accepts every       |                                          transit|--- eth0 --- pod on another node
//	 address)            +-------------------------------------------------+
//
// The node is the only neighbour of every other host, so each packet and each reply passes the
// node. The addresses of the bridges differ from those of eth0, so that an endpoint can tell a
// masqueraded connection of the node from one that was not.
//
// The package knows nothing of Services or of any way to program a kernel; it only reports which
// listener answered a connection and which client address it saw. It does not touch the network of
// the machine, and everything disappears with the process.
package lab
