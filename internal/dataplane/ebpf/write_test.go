package ebpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
)

// TestPutWithoutBatches checks that entries are written one by one if the kernel does not
// support batches, and that the error says if the map is full.
func TestPutWithoutBatches(t *testing.T) {
	lab.RequireRoot(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.DevMapHash, KeySize: 4, ValueSize: 4, MaxEntries: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	lo := [24]byte{1} // index of a link, as values of this type of map must be
	if _, err := m.BatchUpdate([][4]byte{{1}}, [][4]byte{{1}}, nil); !errors.Is(err, ebpf.ErrNotSupported) {
		t.Fatalf("a batch: %v; want %v", err, ebpf.ErrNotSupported)
	}
	var some []*change
	for i := range byte(3) {
		some = append(some, &change{ID: id{key: [24]byte{i + 1}}, New: lo, Has: true})
	}
	if n, err := put[[4]byte, [4]byte](m, some); n != 2 || !errors.Is(err, unix.E2BIG) {
		t.Errorf("%d entries written, error %v; want 2, %v", n, err, unix.E2BIG)
	}
}
