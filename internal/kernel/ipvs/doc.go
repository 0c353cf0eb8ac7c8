// Package ipvs speaks to the kernel's IP virtual servers over generic netlink:
// virtual servers, to which connections are made, and their real servers, to
// which those are sent. [Conn] is the kernel, package ipvstest has memory, and
// one contract test holds both. There are no transactions: operations are sent
// together, are done one by one, and each may fail by itself. No module is loaded.
package ipvs
