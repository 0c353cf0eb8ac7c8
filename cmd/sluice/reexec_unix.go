//go:build unix

package main

import (
	"os"
	"syscall"
)

// reexec replaces this process by a new one with the same command line and PID, so
// that its supervisor does not notice. It returns only if it fails.
func reexec() error { return syscall.Exec("/proc/self/exe", os.Args, os.Environ()) }
