// Package reliability is how a test of a fault tells what it saw, and how that is
// read out of the test's output again, for docs/reliability.md.
package reliability
