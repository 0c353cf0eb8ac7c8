// Package conformance is the packet table: what must happen to a connection, given some Services,
// EndpointSlices and settings. The table is the specification. Each case is answered by the oracle,
// by a kernel that received the whole state in one Sync, and by a kernel that reached the same
// state through incremental changes, some of them detours.
//
// The table is in cases/*.yaml and, for the two large decision tables, in tables.go, which crosses
// every row with everything it must not depend on. [Run] runs all of it against one dataplane in
// network namespaces ([sluice/internal/conformance/lab]); [RunBridged] runs a part of it on another
// network.
//
// The package does not know how any dataplane works: the test of a dataplane passes it to [Run] and
// [RunRandom].
package conformance
