//go:build !linux

package app

import "time"

// threadTime is nil: nothing here ends stale flows.
func threadTime() func() time.Duration { return nil }
