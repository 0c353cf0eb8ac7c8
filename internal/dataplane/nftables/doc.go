// Package nftables renders the desired state as a constant set of rules and
// the elements of a few maps, over netlink.
//
// There is no chain per Service or endpoint. A row ([proxy.ServicePort])
// becomes elements; a step becomes the difference of the old row's elements
// and the new row's, in one atomic batch. For each family there is one table
// named sluice. The path of a connection's first packet:
//
//	prerouting / output
//	  firewall        -110  restricted frontend and client not allowed: drop
//	  services        -100  ClusterIP and not our pod: mark for masquerade
//	                        address . protocol . port vmap @services
//	                          lb-3        choose one of three slots, dnat by @endpoints
//	                          masq-lb-3   mark for masquerade, then lb-3
//	                          ext-lb-3    elsewhere: @locals (lbl-2), or not at all;
//	                                      the node: mark; then lb-3
//	                          aff-HASH    remembered endpoint, or choose and remember
//	                          accept      no endpoint; it must not be taken for a NodePort
//	                        else, to a node address: protocol . port vmap @nodeports (np-3, ...)
//	input / forward / output
//	  filter             0  new and still to a frontend: @no-endpoints (reject or drop)
//	                        new and to another port of a ClusterIP: reject
//	                        new and to an unallocated address of a ServiceCIDR: drop
//	postrouting
//	  masquerade       100  marked, or a pod that was sent to itself (@hairpins)
//
// Chains that choose among n slots exist once per n in use, since numgen's
// modulus is a constant of the rule. Only rows with session affinity have a
// chain of their own, as what is remembered must name the endpoint.
//
// Every rule carries a comment that ends in a hash of its expressions, so that
// Sync can tell a right chain from a wrong one by listing comments alone. The
// package knows nothing of Kubernetes objects.
package nftables
