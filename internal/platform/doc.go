// Package platform changes settings of the host for a service proxy: the size and
// timeouts of connection tracking, and the OOM score of the process.
//
// A value that an administrator has set is lowered only if the configuration asks
// for that explicitly. A setting that cannot be written is a [Problem] to report,
// not an error. The package reads a configuration, not flags, and does not touch
// other settings of the host, such as ip_forward.
package platform
