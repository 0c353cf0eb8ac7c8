// Package testbed is a cluster in one machine: a real control plane, three
// nodes and their pods, all in network namespaces. Nothing of the machine's own
// network is touched.
//
//	             control plane: etcd, kube-apiserver
//	                             |
//	           +------------ underlay ------------+
//	           |                 |                |
//	outside - node-1   outside - node-2   outside - node-3
//	         pod  pod           pod  pod         pod  pod
//
// The outside of a node is whatever lies behind its default route: clients
// with any address, which know that node and no other. Each node runs a proxy
// of its own, a process that is started and stopped by the tests.
//
// There is no controller: the testbed writes Nodes and EndpointSlices itself.
// It does not judge what the proxies do.
package testbed
