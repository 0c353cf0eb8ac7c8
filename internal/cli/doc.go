// Package cli prints responses of the status API: as text that fits 80 columns, as
// JSON or YAML, or as names. sluice and kubectl sluice use it.
//
// It knows nothing about the daemon except its API, and runs on every operating
// system.
package cli
