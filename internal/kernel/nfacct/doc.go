// Package nfacct speaks to the kernel's packet accounting over netlink: it makes
// counters that firewall rules name, reads and deletes them. They belong to a
// network namespace, and both families and all kinds of rules share them.
//
// [Conn] is the kernel, [Fake] is memory; one contract test holds both. A
// kernel can do without this; then everything fails with [ErrUnsupported], and
// whoever writes rules writes them without a counter.
//
// The package knows no counter by name, nothing of rules, and does not log.
package nfacct
