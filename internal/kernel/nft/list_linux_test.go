package nft_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"sluice/internal/kernel/netlink"
	"sluice/internal/kernel/nft"
)

// TestElementsOfGrowingSet lists a set to which packets add elements, which does not interrupt
// a dump: each listing must have the elements of the one before. An error that the set
// changes all the time is allowed.
func TestElementsOfGrowingSet(t *testing.T) {
	c := openInNamespace(t)
	command(t, "ip", "link", "set", "lo", "up")
	command(t, "nft", `table ip contract { set seen { type ipv4_addr; flags dynamic; size 1000000; }; chain out { type filter hook output priority 0; add @seen { ip daddr }; }; }`)
	socket, err := net.ListenUDP("udp4", nil) // by the thread that is in the namespace
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		to := netip.MustParseAddr("127.0.0.1")
		for range 100_000 {
			_, _ = socket.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(to, 9)) // nobody listens there
			to = to.Next()
		}
	}()
	before := map[string]bool{}
	for growing := true; growing; {
		select {
		case <-sent:
			growing = false
		default:
		}
		now := map[string]bool{}
		err := c.Elements(t.Context(), &nft.Set{Table: testTable, Name: "seen"}, func(e nft.Element) { now[e.Key] = true })
		if growing && errors.Is(err, netlink.ErrInterrupted) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		missing := 0
		for key := range before {
			if !now[key] {
				missing++
			}
		}
		if missing > 0 {
			t.Errorf("%d elements of %d are missing from the next listing", missing, len(before))
		}
		before = now
	}
	if len(before) < 100_000 {
		t.Errorf("the last listing has %d elements", len(before))
	}
}
