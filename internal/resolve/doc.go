// Package resolve turns API objects into rows: it decides once, for all dataplanes,
// what happens to the traffic of each port of each Service on this node.
//
//	Service --------> ServiceChangeTracker ---\
//	EndpointSlice --> EndpointsChangeTracker --+--> Resolver.Update --> proxy.Delta
//	Node, ServiceCIDR -------------------------/         \--> Problems
//
// The trackers reduce every object to a small record as it arrives, and collect what
// changed. Update resolves readiness, topology, traffic policy, source ranges and
// conflicts between Services, for the rows that the changes affect. Its cost depends
// on the change, not on the number of Services.
//
// The package is pure and not safe for concurrent use: it does not log, read a clock,
// talk to an API server or know the kernel. Anything wrong with an object is a
// [Problem], never an error: the rest of the object, and all other objects, are used.
package resolve
