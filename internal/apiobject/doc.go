// Package apiobject reads the API objects that a service proxy is made of. It
// fills in what the API server would, turns text into addresses and ports, and
// names each field that cannot be used.
//
//	object --> Parse... --> values that can be used, Problems of the others
//	object --> Check -----> Problems an API server would have refused, too
//
// An object of an API server was accepted, maybe by an older version, so Parse
// uses what it can. Nobody has looked at an object of a manifest, so Check also
// names what only a new object must not have. The package knows nothing of what
// is made of the values, which hold no memory of the object.
package apiobject
