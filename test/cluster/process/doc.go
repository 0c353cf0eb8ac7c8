// Package process runs programs inside the hosts of a lab and keeps what they
// say. It knows nothing of what they do.
package process
