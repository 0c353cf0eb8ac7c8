// Package cli shows answers of the daemon on a terminal: as text that fits 80
// columns, as JSON or YAML, or as names.
//
// It knows nothing of the daemon but its API, and runs on every system.
package cli
