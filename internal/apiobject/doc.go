// Package apiobject parses and checks the API objects that a service proxy uses. It
// applies the defaults of the API server, parses addresses and ports, and reports each
// field that cannot be used.
//
//	object --> Parse... --> values that can be used, and Problems of the others
//	object --> Check -----> Problems, including what an API server would reject
//
// An object from an API server was accepted, maybe by an older version, so Parse uses
// what it can. An object from a manifest has not been validated, so Check also reports
// what an API server rejects only in new objects. The package does not know what the
// values are used for. They do not refer to memory of the object.
package apiobject
