// Package conformance is the packet table: what must happen to a connection,
// given these Services, EndpointSlices and settings. The table is the
// specification. Each case is answered by the oracle, by a kernel that was
// given the whole state at once, and by a kernel that reached the same state by
// increments and detours.
//
// The table is in cases/*.yaml, and for the two large decision tables in
// tables.go, where every row of them is crossed with everything it should not
// depend on. [Run] plays all of it against one dataplane in network namespaces
// ([sluice/internal/conformance/lab]), [RunBridged] a part of it on another network.
//
// The package does not know how any dataplane works: a test of the dataplane
// hands it to [Run] and [RunRandom].
package conformance
