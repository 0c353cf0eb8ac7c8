// Package ipvs reads and writes the kernel's IP virtual servers over generic netlink:
// virtual servers, which clients connect to, and their real servers, which
// connections are forwarded to. [Conn] is the kernel, package ipvstest is a fake in
// memory, and one contract test holds both. IPVS has no transactions: operations are
// sent together, carried out one by one, and each may fail alone. No kernel module is
// loaded.
package ipvs
