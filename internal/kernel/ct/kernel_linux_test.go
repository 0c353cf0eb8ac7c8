package ct_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ct/cttest"
)

// TestKernelFilters wants the kernel to send the flows of the protocol only,
// and none of others to be decoded in vain.
func TestKernelFilters(t *testing.T) {
	c := openInNamespace(t, tracked)
	wantFlows(t, c, ct.Filter{Protocol: sctp}, tracked[4])
	if c.Plain() || c.Parsed() != 1 {
		t.Errorf("%d messages for one flow, filter refused %t", c.Parsed(), c.Plain())
	}
}

// TestFind asks for packets of either direction, and for others.
func TestFind(t *testing.T) {
	c := openInNamespace(t, tracked)
	a := netip.MustParseAddrPort
	for _, tt := range []struct {
		protocol uint8
		src, dst string
		want     error
	}{
		{udp, "10.1.0.7:4000", "10.96.0.10:53", nil},
		{udp, "10.1.0.2:5353", "10.1.0.7:4000", nil},
		{udp, "10.96.0.10:53", "10.1.0.7:4000", ct.ErrNotFound}, // no reply comes from there
		{udp, "10.1.0.7:4001", "10.96.0.10:53", ct.ErrNotFound},
		{tcp, "[fd00::2]:5353", "[fd00::7]:4000", nil},
		{udp, "[fd00::2]:5353", "[fd00::7]:4001", ct.ErrNotFound},
	} {
		if mark, err := c.Find(tt.protocol, ct.Tuple{Src: a(tt.src), Dst: a(tt.dst)}); err != tt.want || mark != 0 {
			t.Errorf("protocol %d %s -> %s: mark %d, error %v; want %v", tt.protocol, tt.src, tt.dst, mark, err, tt.want)
		}
	}
}

// TestOldKernel dumps without the kernel's help.
func TestOldKernel(t *testing.T) {
	c := openInNamespace(t, tracked)
	c.SetPlain()
	wantFlows(t, c, ct.Filter{Protocol: sctp}, tracked[4])
	wantFlows(t, c, ct.Filter{IPv6: true, Protocol: udp}, tracked[5])
	if c.Parsed() != 5+2 {
		t.Errorf("%d messages; want every flow of each family", c.Parsed())
	}
}

// TestLargeDump fills many datagrams.
func TestLargeDump(t *testing.T) {
	const n = 5000
	flows := make([]ct.Flow, 0, n)
	for i := range n {
		src := fmt.Sprintf("10.1.%d.%d:4000", i>>8, i&255)
		flows = append(flows, flow(udp, src, "10.96.0.10:53", "10.1.0.2:5353"))
	}
	c := openInNamespace(t, flows)
	seen := map[netip.AddrPort]bool{}
	got, err := c.Dump(t.Context(), ct.Filter{Protocol: udp}, func(f *ct.Flow) bool {
		seen[f.Orig.Src] = true
		return f.Orig.Src.Addr().As4()[3] == 1
	})
	if err != nil || len(seen) != n || len(got) != 20 {
		t.Errorf("%d seen, %d kept, error %v; want %d, 20", len(seen), len(got), err, n)
	}
}

// TestFakeIncomplete returns flows with the error.
func TestFakeIncomplete(t *testing.T) {
	k := cttest.NewFake()
	k.Add(tracked...)
	k.Fail(fmt.Errorf("%w: for the test", ct.ErrIncomplete))
	got, err := k.Dump(t.Context(), ct.Filter{Protocol: sctp}, all)
	if !errors.Is(err, ct.ErrIncomplete) || len(got) != 1 {
		t.Errorf("flows %v, error %v; want one and %v", got, err, ct.ErrIncomplete)
	}
}
