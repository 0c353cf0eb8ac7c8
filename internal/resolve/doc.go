// Package resolve turns API objects into rows: it decides once, for every
// dataplane, what each port of each Service is on this node.
//
//	Service --------> ServiceChangeTracker ---\
//	EndpointSlice --> EndpointsChangeTracker --+--> Resolver.Update --> proxy.Delta
//	Node, ServiceCIDR -------------------------/         \--> Problems
//
// The trackers reduce every object to a small record as it arrives and gather
// what changed; Update spends readiness, topology, traffic policy, source
// ranges and conflicts between Services on the rows that the changes reach. Its
// cost follows the change, not the number of Services.
//
// The package is pure and for one goroutine: it does not log, read a clock,
// talk to an API server or know the kernel. Whatever is wrong with an object is
// a [Problem], never an error: the rest of the object, and all other objects,
// still count.
package resolve
