// Package process runs programs inside the hosts of a lab and keeps their logs. It knows nothing of
// what they do.
package process
