package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestOrder checks that endpoints are in the maps for as long as a frontend refers to them.
func TestOrder(t *testing.T) {
	d := &Dataplane{host: &host{}, rowIDs: map[proxy.PortKey]uint32{}}
	m := d.differMode()
	m.List = func(context.Context, *proxy.State, func(id, value)) (func() error, bool, error) {
		return nil, false, nil
	}
	var done []string
	m.Write = func(_ context.Context, some []*change) error {
		for _, c := range some {
			done = append(done, map[bool]string{true: "+", false: "-"}[c.Has]+[...]string{"frontend", "endpoint", "member"}[c.ID.table])
		}
		return nil
	}
	all := differ.New(m)
	row := &proxy.ServicePort{
		Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: netip.MustParseAddrPort("172.30.0.1:80")}},
		Cluster:   []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80")}, {Addr: netip.MustParseAddrPort("10.0.0.2:80")}},
	}
	if err := proxytest.Sync(t.Context(), dataplaneOf{all}, proxy.NewState()); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		proxy.Delta
		want []string
	}{
		{proxy.Delta{Upserts: []proxy.Upsert{{New: row}}}, []string{"+endpoint", "+endpoint", "+frontend"}},
		{proxy.Delta{Removes: []*proxy.ServicePort{row}}, []string{"-frontend", "-endpoint", "-endpoint"}},
	} {
		done = nil
		if err := proxytest.Apply(t.Context(), dataplaneOf{all}, &step.Delta); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, done); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	}
}

// dataplaneOf is a differ as a dataplane.
type dataplaneOf struct{ *differ.Differ[id, value] }

func (dataplaneOf) Close() error { return nil }

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
