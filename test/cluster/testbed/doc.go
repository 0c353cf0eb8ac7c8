// Package testbed is a cluster on one machine: a real control plane, three nodes and their pods,
// all in network namespaces. It does not touch the machine's own network.
//
//	             control plane: etcd, kube-apiserver
//	                             |
//	           +------------ underlay ------------+
//	           |                 |                |
//	outside - node-1   outside - node-2   outside - node-3
//	         pod  pod           pod  pod         pod  pod
//
// The outside of a node is what lies behind its default route: clients with any address, which can
// reach that node only. Each node runs its own proxy, a process that tests start and stop.
//
// There is no controller: the testbed writes Nodes and EndpointSlices itself. It does not judge
// what the proxies do.
package testbed
