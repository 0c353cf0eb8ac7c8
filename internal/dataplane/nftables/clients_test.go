package nftables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// manyRanges returns ranges of one address, no two of which are adjacent.
func manyRanges(n int) (all []netip.Prefix) {
	for i := range n {
		all = append(all, netip.PrefixFrom(addrPort(20<<24, 2*i, 0).Addr(), 32))
	}
	return all
}

// restrictedRow returns a row with a LoadBalancer that only the given clients may use.
func restrictedRow(i int, from []netip.Prefix) *proxy.ServicePort {
	sp := plainRow(i, 1, 0)
	sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: addrPort(172<<24|30<<16, i, 80)})
	sp.AllowFrom = from
	return sp
}

// clientsChains returns the rules of all chains of source ranges.
func clientsChains(t *testing.T, c nft.Interface, d *Dataplane) map[string][]nft.ListedRule {
	t.Helper()
	l, err := c.List(t.Context(), d.tables[0].Table)
	if err != nil {
		t.Fatal(err)
	}
	for name := range l.Chains {
		if !strings.HasPrefix(name, clientsPrefix) {
			delete(l.Chains, name)
		}
	}
	return l.Chains
}

// TestCostOfSourceRanges checks that rows with the same ranges share a chain, and that
// removing it takes no operation per range.
func TestCostOfSourceRanges(t *testing.T) {
	const ranges, rows = 4000, 4
	d, fake := synced(t, 100)
	add, less, remove := &proxy.Delta{}, &proxy.Delta{}, &proxy.Delta{}
	for i := range rows {
		was, is := restrictedRow(1000+i, manyRanges(ranges)), restrictedRow(1000+i, manyRanges(ranges-1))
		add.Upserts = append(add.Upserts, proxy.Upsert{New: was})
		less.Upserts = append(less.Upserts, proxy.Upsert{Old: was, New: is})
		remove.Removes = append(remove.Removes, is)
	}
	for _, step := range []struct {
		name     string
		delta    *proxy.Delta
		elements int // but for those of ranges
		lists    int
	}{{"add", add, 40, 1}, {"one range less", less, 2 * rows, 1}, {"remove", remove, 40, 0}} {
		proxytest.MustApply(t, d, step.delta)
		if c := fake.Reset(); c.Elements() > step.elements+step.lists*ranges || c.Lists > 0 || c.Ops[nft.AddSet] != step.lists {
			t.Errorf("%s: %d operations on elements, %d sets, %d lists; want at most %d and %d ranges, %d, 0",
				step.name, c.Elements(), c.Ops[nft.AddSet], c.Lists, step.elements, step.lists*ranges, step.lists)
		}
		if got := len(clientsChains(t, fake, d)); got != step.lists {
			t.Errorf("%s: %d chains for clients, want %d", step.name, got, step.lists)
		}
		fake.Reset()
	}
}

// TestSharedSourceRanges checks that ranges stay until the last row with them is removed.
func TestSharedSourceRanges(t *testing.T) {
	d, fake := synced(t, 1)
	a, b := restrictedRow(10, manyRanges(2)), restrictedRow(11, manyRanges(2))
	for i, step := range []*proxy.Delta{
		{Upserts: []proxy.Upsert{{New: a}}}, {Upserts: []proxy.Upsert{{New: b}}}, {Removes: []*proxy.ServicePort{a}}, {Removes: []*proxy.ServicePort{b}},
	} {
		proxytest.MustApply(t, d, step)
		if got, want := len(clientsChains(t, fake, d)), []int{1, 1, 1, 0}[i]; got != want {
			t.Errorf("step %d: %d chains, want %d", i, got, want)
		}
	}
}

// TestSourceRangesAdmitClients sends packets of clients inside and outside of ranges of
// every form, which Apply changes.
func TestSourceRangesAdmitClients(t *testing.T) {
	lab.Namespace(t)
	podsOnLoopback(t)
	lab.Loopback(t, netip.MustParseAddr("192.0.2.1")) // to masquerade with
	d, _ := openKernel(t)
	s := plainState(0)
	last := restrictedRow(1, nil)
	last.Key.Protocol = proxy.UDP
	s.Rows[last.Key] = last
	proxytest.MustSync(t, d, s)
	at := func(i int) netip.Addr { return addrPort(10<<24, i, 0).Addr() }
	var apart, adjacent []netip.Prefix
	for i := range 100 {
		apart = append(apart, netip.PrefixFrom(at(10+2*i), 32))
		adjacent = append(adjacent, netip.PrefixFrom(at(16+2*i), 31))
	}
	for name, test := range map[string]struct {
		from []netip.Prefix
		let  []int
	}{
		"nobody":   {[]netip.Prefix{}, nil},
		"few":      {apart[:3], []int{10, 14}},
		"many":     {apart, []int{10, 14, 16, 200, 208}},
		"adjacent": {adjacent, []int{16, 17, 200, 208, 209, 215}},
		"everyone": {[]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, []int{9, 10, 11, 14, 15, 16, 17, 200, 208, 209, 215, 216}},
	} {
		row := *last
		row.AllowFrom = test.from
		if err := proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: last, New: &row}}}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		last = &row
		for _, i := range []int{9, 10, 11, 14, 15, 16, 17, 200, 208, 209, 215, 216} {
			let, err := sends(at(i), last.Frontends[1].Addr)
			if want := slices.Contains(test.let, i); err != nil || let != want {
				t.Errorf("%s: client %v is admitted: %t, error %v; want %t", name, at(i), let, err, want)
			}
		}
	}
}

// sends reports whether a packet is sent, not dropped.
func sends(from netip.Addr, to netip.AddrPort) (bool, error) {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
	if err != nil {
		return false, fmt.Errorf("dial: %w", err)
	}
	defer c.Close()
	_, err = c.Write([]byte("x"))
	if errors.Is(err, unix.EPERM) {
		return false, nil
	}
	return err == nil, err
}
