// Package explain says what happens to a packet and why: which Service it is for,
// which endpoints it may go to, why the others are not used, and what to do if that
// is not as expected.
//
// The verdict comes from the oracle, [proxy.State.Outcome], which the packet table
// tests. The resolver adds what was decided before policy applies: endpoints that
// are not ready, ports that no EndpointSlice has, addresses that another Service
// has. The engine adds what is not in force yet. The package does not read the
// kernel itself, and works on any operating system.
package explain
