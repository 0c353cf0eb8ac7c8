package command

import (
	"os"
	"testing"

	"sluice/test/daemon/testbed"
)

// maxBinary is how many bytes the daemon's program may have. Most of what it
// touches of them stays resident on every node of a cluster.
const maxBinary = 30_000_000

func TestBinaryIsSmall(t *testing.T) {
	path := testbed.Binary(t)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxBinary {
		t.Errorf("the program has %d bytes, at most %d are wanted; go build -ldflags=-dumpdep tells which package "+
			"brings what in, and marks with <ReflectMethod> what makes the linker keep every method", info.Size(), maxBinary)
	}
}
