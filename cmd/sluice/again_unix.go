//go:build unix

package main

import (
	"os"
	"syscall"
)

// again makes this process one that has just started, with the same command
// line: whoever watches over it need not start another. It returns only on an
// error.
func again() error { return syscall.Exec("/proc/self/exe", os.Args, os.Environ()) }
