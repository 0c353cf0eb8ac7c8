// Package statusapi defines the daemon's read-only status API: its types, its
// paths and a client. The API is JSON over HTTP, GET only, served at a unix socket
// and, if the operator configures one, at a TCP address. Every path starts with
// the version. Within a version, fields are added but never removed or changed.
//
// Programs on other operating systems use the package too, so it depends only on
// the standard library.
package statusapi
