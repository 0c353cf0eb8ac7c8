package conformance

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// ForgeLoopback lets a host send packets from loopback addresses.
func ForgeLoopback(t testing.TB, h *lab.Host) {
	t.Helper()
	if err := h.Do(func() error {
		return exec.CommandContext(t.Context(), "sh", "-ec", "ip route del local 127.0.0.0/8 dev lo table local; "+
			"ip route del local 127.0.0.1 dev lo table local; echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet").Run()
	}); err != nil {
		t.Fatal(err)
	}
}

// SendDatagram sends one UDP datagram from an address of the host.
func SendDatagram(t testing.TB, h *lab.Host, text, src string, dst netip.AddrPort) {
	t.Helper()
	c, err := h.Dial(t.Context(), proxy.UDP, netip.MustParseAddr(src), dst)
	if err == nil {
		_, err = c.Write([]byte(text))
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		t.Fatalf("send %q: %v", text, err)
	}
}

// ReceiveDatagrams returns the datagrams that arrive, until one equals last.
func ReceiveDatagrams(t testing.TB, in net.PacketConn, last string) (got []string) {
	t.Helper()
	if err := in.SetReadDeadline(time.Now().Add(traffic.Scaled(10 * time.Second))); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 64); !slices.Contains(got, last); {
		n, _, err := in.ReadFrom(b)
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		got = append(got, string(b[:n]))
	}
	return got
}
