// Package programs provides the programs under test: those that make test has built once for all of
// its steps, or, to a test that runs alone, newly built ones.
package programs
