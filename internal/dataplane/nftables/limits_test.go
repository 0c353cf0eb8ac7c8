package nftables

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestLargeMap writes one Service with more than 65535 endpoints to the kernel: all are
// there, replacing one costs as much as with few, and none is left when the Service is deleted.
func TestLargeMap(t *testing.T) {
	const endpoints = 70_000
	lab.Namespace(t)
	d, c := openKernel(t)
	proxytest.MustSync(t, d, plainState(1))
	count := func() (n int) {
		t.Helper()
		if err := c.Elements(t.Context(), d.tables[0].addresses.endpoints, func(nft.Element) { n++ }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	beside := count()
	large := func(shift int) *proxy.ServicePort { return plainRow(7, endpoints, shift) }
	apply := func(step *proxy.Delta) (written int) {
		t.Helper()
		c.commits = nil
		proxytest.MustApply(t, d, step)
		for _, ops := range c.commits {
			written += len(ops)
		}
		return written
	}
	apply(&proxy.Delta{Upserts: []proxy.Upsert{{New: large(0)}}})
	if n := count(); n != beside+endpoints {
		t.Errorf("the map has %d elements; want %d", n, beside+endpoints)
	}
	if n := apply(&proxy.Delta{Upserts: []proxy.Upsert{{Old: large(0), New: large(1 << 20)}}}); n > 4 {
		t.Errorf("%d operations replace one of %d endpoints; want at most 4", n, endpoints)
	}
	apply(&proxy.Delta{Removes: []*proxy.ServicePort{large(1 << 20)}})
	if n := count(); n != beside {
		t.Errorf("the map has %d elements; want %d", n, beside)
	}
}

// TestTooManyForAffinity checks that a Service with session affinity and too many endpoints is
// refused with the reason, and that the others are written.
func TestTooManyForAffinity(t *testing.T) {
	lab.Namespace(t)
	d, c := openKernel(t)
	large := plainRow(7, maxEndpoints, 0)
	large.Affinity, large.Local = time.Hour, plainRow(9<<12, 1, 0).Cluster // which is in the other list alone
	both := plainRow(2, maxEndpoints, 0)
	both.Affinity, both.Local = time.Hour, both.Cluster
	s := plainState(3)
	s.Rows[large.Key], s.Rows[both.Key] = large, both
	wantRefused(t, d, c, s, large, "8192 endpoints are too many for session affinity, the maximum is 8191")
}

// TestTooManyElements checks that a Service with too many pairs of address and endpoint is
// refused.
func TestTooManyElements(t *testing.T) {
	lab.Namespace(t)
	d, c := openKernel(t)
	wide := plainRow(7, maxElements/256, 0)
	for i := range 256 {
		wide.Frontends = append(wide.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80)})
	}
	s := plainState(3)
	s.Rows[wide.Key] = wide
	wantRefused(t, d, c, s, wide, "257 addresses with 1024 endpoints each are more than the 262144 elements that a service port may have")
}

// wantRefused fails the test unless one row of a state is refused and the other three are
// written.
func wantRefused(t *testing.T, d *Dataplane, c *counter, s *proxy.State, row *proxy.ServicePort, why string) {
	t.Helper()
	err := proxytest.Sync(t.Context(), d, s)
	refused, ok := errors.AsType[*proxytest.RefusedError](err)
	if !ok {
		t.Fatalf("Sync gave %v; want one row refused", err)
	}
	rows := slices.Collect(maps.Keys(refused.Rows))
	if len(rows) != 1 || rows[0] != row.Key || !strings.Contains(refused.Rows[row.Key].Error(), why) {
		t.Errorf("refused are %v", refused.Rows)
	}
	n := 0
	if err := c.Elements(t.Context(), d.tables[0].addresses.dispatch, func(nft.Element) { n++ }); err != nil || n != 3 {
		t.Errorf("%d Services are written, error %v; want the other 3", n, err)
	}
}
