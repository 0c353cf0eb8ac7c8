// Package runner decides when a function runs: soon after a request, but not too
// often, periodically without a request, and again after a failure.
//
// It does not know what the function does, and imports only the standard library.
package runner
