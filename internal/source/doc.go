// Package source defines how Services, EndpointSlices, the Node and ServiceCIDRs are
// delivered: Handler receives them, Source delivers them, and four Configs between the
// two filter events.
//
//	API server --informer--+
//	                       +--> Config (filter) --> Handler
//	folder ----manifest----+
//
// [Start] runs a source before there is a handler: objects are read while the kernel is
// probed. Both sources deliver through the same Configs, so a Handler does not depend on the
// source. The package knows API objects; it must not know what they are used for:
// neither rows, nor dataplanes, nor the kernel.
package source
