// Package link tells which addresses this network namespace has, and when that
// changes. [Conn] is the kernel, over route netlink; package linktest has memory;
// one contract test holds both. The package knows nothing of Services or Nodes and
// does not log.
package link
