// Package hops follows one event through the daemon and compares the functions that it passes
// with the list in ARCHITECTURE.md. Each mode calls it from a test, with its own dataplane.
//
// Nothing on the way has to report that it was passed: Go's memory profile records the call stack
// of every allocation, so a function is seen if it, or a function that it calls, allocates memory.
package hops
