// Package balancetest checks with real packets how a dataplane distributes connections over
// endpoints, for every method that its mode supports: round robin exactly in turn, source hash and
// Maglev always the same endpoint for a client address, random about evenly, and session affinity
// unchanged.
//
// The packet table defines which endpoints a packet may reach; this package checks how often each
// is reached. It knows nothing of any way to program a kernel.
package balancetest
