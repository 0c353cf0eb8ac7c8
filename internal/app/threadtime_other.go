//go:build !linux

package app

import "time"

// threadTime returns nil: only Linux has a conntrack reconciler, which would use it.
func threadTime() func() time.Duration { return nil }
