// Package reliability writes the result of a fault test into the test's output and reads it back,
// for docs/reliability.md.
package reliability
