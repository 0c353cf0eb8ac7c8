// Package runner decides when a function runs: soon after somebody asks, never
// too often, now and then in any case, and again after a failure.
//
// It knows nothing of what the function does, and imports the standard library
// only.
package runner
