// Package nftables implements mode nftables: it renders rows as a constant set of
// rules and the elements of a few maps, and writes them over netlink.
//
// There is no chain per Service, endpoint or client. A row ([proxy.ServicePort])
// renders to elements; a change of the row is the difference between its old and
// its new elements, written in one atomic batch. Each family has one table, named
// sluice. The path of a connection's first packet:
//
//	prerouting / output
//	  firewall        -110  jump by @source-ranges, if the frontend has source ranges:
//	                          clients-...   drop clients outside the ranges
//	  services        -100  look up the class in @services (address . protocol . port); its value
//	                          also says whether the frontend is a ClusterIP: then mark for
//	                          masquerade unless the client is one of our pods
//	                        if it is split by origin (externalTrafficPolicy Local):
//	                          clients from elsewhere: class by @locals, or no endpoint
//	                          the node: mark; our pods and the node: class by @external
//	                        then go to the chain of the class:
//	                          lb-3          choose one of three slots; endpoint-lb: dnat by @endpoints
//	                          masq-lb-3     mark for masquerade, then the same
//	                          lb-3-3h0m0s   known-lb, live-lb: the client's endpoint by @affinity;
//	                                        other-list, live-lb: the endpoint remembered for the row's
//	                                        other list, if this list has it too;
//	                                        else choose a slot, id-lb, remember-3h0m0s, chosen-lb
//	                          lb-3-source-hash, lb-3-round-robin-...: as lb-3, with another method
//	                          accept        no endpoint; the packet must not match a NodePort
//	                        otherwise, to a node address: the same by protocol . port (np-3, ...)
//	input / forward / output
//	  filter             0  new and still to a frontend: reject or drop, according to @no-endpoints;
//	                        these packets, and those that the firewall drops, are counted by the
//	                        destination that the client used (@refused-...)
//	                        new and to another port of a ClusterIP: reject
//	                        new and to an unallocated address of a ServiceCIDR: drop
//	postrouting
//	  masquerade       100  marked packets, and pods that were sent to themselves (@hairpins)
//
// A class is everything that the rules for choosing an endpoint depend on: the number
// of slots (the modulus of numgen is a constant in the rule), the balancing method, the
// affinity timeout, and whether to masquerade. Maps of frontends contain the number of a
// class, and @classes maps numbers to chains, because whenever an element with a chain
// is added, the kernel checks all elements that have one. For the same reason the chain of
// a class refers to no map: constant chains look up the endpoint. The packet's
// priority carries the result of one lookup to the next; the filter chains clear it.
//
// Frontends with the same source ranges share a chain whose name is derived from the
// ranges. Many ranges are in an anonymous set of the chain's rule, which the kernel
// deletes together with the rule: removing ranges one by one from a set shared by all
// frontends takes the kernel minutes.
//
// Other modes build on these rules: policy is decided here, and the other mode takes
// over where an endpoint would be chosen ([Overlay]).
//
// For package differ, sets, chains with their rules, and elements are objects.
// Sync compares all of them, rules by their expressions. The package knows
// nothing about Kubernetes objects.
package nftables
