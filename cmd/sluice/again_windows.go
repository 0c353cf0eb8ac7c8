package main

import "errors"

// again returns an error: Windows cannot make one process another. Whoever watches
// over this one starts the next.
func again() error { return errors.New("a process of Windows cannot become another, start it again") }
