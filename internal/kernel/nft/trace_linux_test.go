package nft_test

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
)

// TestTrace traces one packet through rules of other programs, and checks that no table is left.
func TestTrace(t *testing.T) {
	for _, dst := range []string{"127.0.0.1:4242", "[::1]:4242"} {
		t.Run(dst, func(t *testing.T) {
			c := openInNamespace(t)
			command(t, "ip", "link", "set", "lo", "up")
			command(t, "nft", `table inet others { chain in { type filter hook input priority 0; udp dport { 4242, 4343 } jump inner; }; chain inner { counter; udp dport { 4242, 4343 } drop; }; }`)
			command(t, "nft", `table inet translates { chain out { type nat hook output priority -100; udp dport 4242 redirect to :4343; }; }`)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			// The thread in the namespace must send.
			socket, err := net.Dial("udp", dst)
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			var got []string
			var to []netip.AddrPort
			during := ""
			err = c.Trace(ctx, nft.Traced{Protocol: unix.IPPROTO_UDP, Dst: netip.MustParseAddrPort(dst)}, func() {
				during = command(t, "nft", "list", "tables")
				for range 2 { // of which each is a packet of its own
					if _, err := socket.Write([]byte("x")); err != nil {
						t.Error(err)
					}
				}
			}, func(s nft.TraceStep) {
				if s.Table == nft.TraceTable || s.Table == "translates" {
					return
				}
				if s.Dst.IsValid() {
					to = append(to, s.Dst)
				}
				if got = append(got, strings.TrimSpace(s.Table+" "+s.Chain+" "+s.Verdict)); s.Drops {
					if s.Handle == 0 || s.Family != 1 {
						t.Errorf("what drops is %+v", s)
					}
					cancel()
				}
			})
			if want := []string{"others in jump inner", "others inner continue", "others inner drop"}; err != nil || len(got) < 3 || !slices.Equal(got[:3], want) {
				t.Errorf("error %v, steps %q, want %q", err, got, want)
			}
			if want := netip.AddrPortFrom(netip.MustParseAddrPort(dst).Addr(), 4343); len(to) == 0 || to[0] != want {
				t.Errorf("after the translation the packet goes to %v, want %v", to, want)
			}
			if !strings.Contains(during, nft.TraceTable) || strings.Contains(command(t, "nft", "list", "tables"), nft.TraceTable) {
				t.Errorf("tables during the trace %q, after it %q", during, command(t, "nft", "list", "tables"))
			}
		})
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}
