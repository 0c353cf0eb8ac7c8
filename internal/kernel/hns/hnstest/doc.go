// Package hnstest has the Host Networking Service in memory, for tests: it
// refuses what Windows refuses, as far as that is known, and counts what it is
// asked. Where Windows is not known, it is strict, so that nobody relies on what
// may be refused: a load balancer needs endpoints, and its frontend stays. An
// endpoint may be deleted while load balancers have it, and they keep its ID:
// others have seen that on Windows.
package hnstest
