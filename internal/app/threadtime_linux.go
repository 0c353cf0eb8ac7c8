package app

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns a function that returns the CPU time of the calling thread, or
// nil if the kernel does not provide it.
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
		t, _ := read() // it worked above
		return t
	}
}
