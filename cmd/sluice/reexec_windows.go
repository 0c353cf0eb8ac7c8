package main

import "errors"

// reexec returns an error: Windows cannot replace a process by another. The
// supervisor must start a new one.
func reexec() error { return errors.New("Windows cannot replace a running process, start it again") }
