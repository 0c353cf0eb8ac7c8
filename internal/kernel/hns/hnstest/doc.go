// Package hnstest implements the Host Networking Service in memory, for tests. It refuses what
// Windows refuses, as far as that is known, and counts calls. Where the behaviour of Windows is not
// known, it is strict, so that nothing relies on what may be refused: a load balancer needs
// endpoints, and its frontend cannot change. An endpoint may be deleted while load balancers use
// it, and they keep its ID, as others have observed on Windows.
package hnstest
