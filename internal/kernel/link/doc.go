// Package link returns the addresses of this network namespace, announces their changes,
// and manages a dummy link and local routes. [Conn] and [Dummy] use route netlink; package
// linktest has fakes that keep addresses in memory. One contract test checks both. The
// package knows nothing about Services or Nodes and does not log.
package link
