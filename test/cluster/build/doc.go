// Package build makes the programs that the end-to-end tests run: foreign ones
// from the Go module registry, at the version that go.mod names, and our own
// daemon from the tree. It keeps foreign ones in a folder that git ignores, so
// that they are built once.
//
// It knows nothing of what the programs do.
package build
