//go:build !linux && !windows

package dataplane

// table returns nil: there are no modes for this operating system.
func table() []Mode { return nil }
