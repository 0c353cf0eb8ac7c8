// Package kernelspace has the Host Networking Service of Windows choose endpoints.
//
// A frontend is a load balancer of the service (HNS), which has one list of
// endpoints and one port of theirs. Pods of this node are endpoints that their
// network plugin made; for pods of other nodes we make remote ones, which rows
// share. The path of a connection's first packet:
//
//	virtual switch   a load balancer has the address (a NodePort: any of the node) and port:
//	                   choose an endpoint, by the connection or by the client
//	                   overlay network: the endpoint sees the source VIP, unless
//	                   direct server return (DSR) shows it the client
//	                 none has: as if there were no Service
//	the endpoint     a pod here: delivered; a remote one: sent to its node
//
// What HNS cannot do: refuse a packet or look at its source. A frontend without
// endpoints is no load balancer; one that not everybody may use is none either.
// All clients of a frontend take the list that clients elsewhere take. Rows that
// are served in part are refused, with the reason.
//
// There are no transactions. The differ knows what is wanted, [Dataplane] what HNS
// has; each object that HNS refuses is set aside by itself and tried again with its
// row. Endpoints come before the load balancers that use them and go after. What
// is ours carries no name: remote endpoints have a MAC made of their address, as
// kube-proxy's do, and load balancers have endpoints on the network of the pods.
// So both are adopted at a start, whoever of the two left them.
package kernelspace
