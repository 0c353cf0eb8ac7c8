package app

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns a clock that goes while the calling thread has a processor, or nil
// where that cannot be read.
func threadTime() func() time.Duration {
	read := func() (time.Duration, error) {
		var t unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
		return time.Duration(t.Nano()), err
	}
	if _, err := read(); err != nil {
		return nil
	}
	return func() time.Duration {
		t, _ := read() // which it could before
		return t
	}
}
