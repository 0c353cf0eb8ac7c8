// Package link tells which addresses this network namespace has, and when that
// changes. [Conn] is the kernel, over route netlink; [Fake] is memory; one
// contract test holds both. The package knows nothing of Services or Nodes and
// does not log.
package link
