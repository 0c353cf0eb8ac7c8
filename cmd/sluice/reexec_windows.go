package main

import "errors"

// reexec returns an error: Windows cannot replace a process by another. The
// supervisor must start a new one.
func reexec() error { return errors.New("a process cannot be replaced on Windows, start it again") }
