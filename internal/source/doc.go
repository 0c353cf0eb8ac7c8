// Package source is where Services, EndpointSlices, the Node and ServiceCIDRs
// come from: the Handler that wants them, the four Configs that filter events, and
// Source, which feeds the Configs.
//
//	API server --informer--+
//	                       +--> Config (filter) --> Handler
//	folder ----manifest----+
//
// Both sources deliver through the same Configs, so that a Handler cannot tell
// them apart. The package knows API objects; it must not know what is made of
// them: neither rows, nor dataplanes, nor the kernel.
package source
