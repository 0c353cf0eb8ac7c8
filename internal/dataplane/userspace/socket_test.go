package userspace

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOriginalDestination decodes the original destination of a datagram, and rejects other
// lengths.
func TestOriginalDestination(t *testing.T) {
	v4 := make([]byte, unix.SizeofSockaddrInet4)
	copy(v4[2:], []byte{0x1f, 0x90, 192, 0, 2, 7})
	v6 := make([]byte, unix.SizeofSockaddrInet6)
	copy(v6[2:], []byte{0, 53})
	copy(v6[8:], netip.MustParseAddr("2001:db8::7").AsSlice())
	for raw, want := range map[string]netip.AddrPort{
		string(v4):                netip.MustParseAddrPort("192.0.2.7:8080"),
		string(v6):                netip.MustParseAddrPort("[2001:db8::7]:53"),
		"":                        {},
		"\x02\x00":                {},
		string(append(v4, v6...)): {},
	} {
		if got := originalDestination([]byte(raw)); got != want {
			t.Errorf("%x: %v; want %v", raw, got, want)
		}
	}
}
