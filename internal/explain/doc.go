// Package explain says what happens to a packet and why: whose it is, where it
// may go, which endpoints it cannot go to, and what to do about it.
//
// The verdict is the oracle's, [proxy.State.Outcome], of which the packet table
// is the test. What lies before policy (endpoints that are not ready, ports that
// no slice has, addresses that another Service has) is told by the resolver, and
// what the kernel has not taken yet by the engine. The package looks at no kernel
// and works on any system.
package explain
