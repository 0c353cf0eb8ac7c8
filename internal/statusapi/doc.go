// Package statusapi has what the daemon tells about itself: the types of its
// read-only API, and a client. It is JSON over HTTP, GET only, at a unix socket
// unless the operator opens more. The version is part of every path. Within a
// version fields are added, never removed or changed.
//
// Programs on other systems use it too, so it needs nothing but the standard
// library.
package statusapi
