// Package traffic makes connections from inside a host and answers them inside
// another, with as little work of its own as it can: plain blocking system calls
// on threads of their own. It is what the figures of a proxy are read from.
//
// A server answers with the address that it was reached by, so that a client
// knows which endpoint it got. The package knows nothing of Services or proxies.
package traffic
