//go:build !linux

package app

import "context"

const lockName = "" // not used

// daemonLock does nothing on this operating system: daemons do not detect each
// other.
type daemonLock struct{ name, self string }

func (daemonLock) acquire(context.Context) (release func()) { return func() {} }
