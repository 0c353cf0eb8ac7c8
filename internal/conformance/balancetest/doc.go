// Package balancetest checks with real packets how a dataplane spreads
// connections over endpoints, for every way of choosing that its mode knows: each
// in turn exactly, by the client's address always the same, by chance about
// evenly, and with session affinity as it was.
//
// The packet table says to whom a packet may go; this package says to whom how
// often. It knows nothing of any way to program a kernel.
package balancetest
