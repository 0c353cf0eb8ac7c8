// Package kernelspace implements Services with the Host Networking Service (HNS)
// of Windows.
//
// A frontend is a load balancer of HNS, which has one list of endpoints and one
// port for all of them. Pods of this node are endpoints that their network plugin
// created; for pods of other nodes we create remote endpoints, which rows share.
// The path of a connection's first packet:
//
//	virtual switch   a load balancer matches the address (a NodePort: any of the node) and port:
//	                   choose an endpoint, by connection or by client
//	                   overlay network: the endpoint sees the source VIP, or with
//	                   direct server return (DSR) the client
//	                 none matches: as if there were no Service
//	the endpoint     a pod of this node: delivered; a remote one: sent to its node
//
// HNS can neither reject packets nor match their source. So a frontend without
// endpoints has no load balancer, and neither has one that only some clients may
// use. All clients of a frontend use the list of clients from elsewhere. Rows that
// are served only in part are reported as refused, with the reason.
//
// There are no transactions. The differ knows what is wanted, [Dataplane] knows
// what HNS has; each object that HNS refuses is set aside by itself and retried
// with its row. Endpoints are created before the load balancers that use them and
// deleted after. HNS objects carry no owner, so ours are recognized: a remote
// endpoint by its MAC, which is derived from its address as kube-proxy does it, a
// load balancer by its endpoints on the network of the pods. At a start both are
// adopted, whether Sluice or kube-proxy left them.
package kernelspace
