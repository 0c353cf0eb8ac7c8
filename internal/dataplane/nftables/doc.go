// Package nftables renders the desired state as a constant set of rules and
// the elements of a few maps, over netlink.
//
// There is no chain per Service, endpoint or client. A row ([proxy.ServicePort])
// becomes elements; a step becomes the difference of the old row's elements
// and the new row's, in one atomic batch. For each family there is one table
// named sluice. The path of a connection's first packet:
//
//	prerouting / output
//	  firewall        -110  chain of the frontend's source ranges by @source-ranges, if it has any
//	                          clients-...   client in none of them: drop
//	  services        -100  class by @services (address . protocol . port), which also says that it is
//	                          a ClusterIP: mark for masquerade what is not our pods'
//	                          split by client (externalTrafficPolicy Local):
//	                            elsewhere: class by @locals, or not at all
//	                            the node: mark; our pods and the node: class by @external
//	                        and the class
//	                          lb-3          choose one of three slots; endpoint-lb: dnat by @endpoints
//	                          masq-lb-3     mark for masquerade, then the same
//	                          lb-3-3h0m0s   known-lb, live-lb: the client's endpoint by @affinity;
//	                                        other-list, live-lb: that of the row's other list, if it is in this one;
//	                                        else choose a slot, id-lb, remember-3h0m0s, chosen-lb
//	                          lb-3-source-hash, lb-3-round-robin-...: as lb-3, with another way to choose
//	                          accept        no endpoint; it must not be taken for a NodePort
//	                        else, to a node address: the same by protocol . port (np-3, ...)
//	input / forward / output
//	  filter             0  new and still to a frontend: reject or drop, as @no-endpoints says;
//	                        both are counted by what the client sent to (@refused-...), as at the firewall
//	                        new and to another port of a ClusterIP: reject
//	                        new and to an unallocated address of a ServiceCIDR: drop
//	postrouting
//	  masquerade       100  marked, or a pod that was sent to itself (@hairpins)
//
// A class is what the rules that choose depend on: how many slots there are
// (numgen's modulus is a constant of the rule) and how one is chosen, how long a
// client is remembered, whether to masquerade. The maps hold its number, and @classes
// leads from numbers to chains, because the kernel checks all elements that
// have a chain whenever one is added. For the same reason the chain of a class
// refers to no map: constant chains look the endpoint up. From one lookup to the
// next, what was found is the packet's priority; the filter clears it.
//
// Frontends with the same source ranges share a chain that is named by them. It has
// many ranges in a set of its rule's own, which goes with the rule at once: removing
// them one by one from a set of all frontends takes the kernel minutes.
//
// Other modes stand on these rules: they have policy decided here and take over
// where an endpoint would be chosen ([Overlay]).
//
// To package differ, sets, chains with their rules and elements are objects.
// Sync compares all of them, rules by their expressions. The package knows
// nothing of Kubernetes objects.
package nftables
