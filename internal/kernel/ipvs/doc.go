// Package ipvs speaks to the kernel's IP virtual servers over generic netlink:
// virtual servers, to which connections are made, and their real servers, to
// which those are sent. [Conn] is the kernel, package ipvstest has memory, and
// one contract test holds both. The package knows nothing of Services, loads no
// module and does not log.
//
// IPVS has no transactions: operations are done one by one, and each may fail by
// itself. They are sent together, and the kernel answers only for those that it
// refuses, so that many cost little more than a few.
package ipvs
