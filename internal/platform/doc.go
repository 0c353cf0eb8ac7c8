// Package platform fits the host to a service proxy: the size and time-outs of
// connection tracking, and how the kernel's out-of-memory killer sees us.
//
// What an administrator has set is not lowered unless the configuration says so
// in so many words, and what cannot be written is a [Problem] to report, never
// a reason not to proxy. The package reads a configuration, not flags, and
// leaves everything else of the host (ip_forward, for one) as it is.
package platform
