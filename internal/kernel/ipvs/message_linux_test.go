package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// encoded returns the attributes of an operation.
func encoded(o Op) []byte {
	var b netlink.Builder
	b.Begin(0, 0, [4]byte{})
	o.encode(&b)
	return b.Bytes()[unix.SizeofNlMsghdr+4:]
}

// TestMessages reads what is written.
func TestMessages(t *testing.T) {
	for _, addr := range []string{"10.96.0.10:80", "[fd00::1]:53"} {
		at := netip.MustParseAddrPort(addr)
		want, settings := Server{unix.IPPROTO_UDP, at}, Settings{Scheduler: "mh", HashPorts: true, Fallback: true, Persistence: time.Hour}
		got, as, ok := decodeServer(encoded(Op{Server: want, Settings: settings}))
		if got != want || as != settings || !ok {
			t.Errorf("written and read again: %v, %+v, %t; want %v, %+v", got, as, ok, want, settings)
		}
		real := Real{netip.AddrPortFrom(at.Addr().Next(), 8080), 3}
		state, ok := decodeReal(encoded(Op{Server: want, Real: real}), at.Addr().Is4())
		if state != (RealState{Real: real}) || !ok {
			t.Errorf("written and read again: %+v, %t; want %+v", state, ok, real)
		}
	}
}

// TestServersByMark are not told.
func TestServersByMark(t *testing.T) {
	var b netlink.Builder
	b.Begin(0, 0, [4]byte{})
	b.Nest(attrService, func() { b.Raw(serviceFamily, string([]byte{unix.AF_INET, 0})); b.U32(5, 1) })
	if s, _, ok := decodeServer(b.Bytes()[unix.SizeofNlMsghdr+4:]); ok {
		t.Errorf("a server by firewall mark is %v", s)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encoded(Op{Server: Server{6, netip.MustParseAddrPort("10.96.0.10:80")}, Real: Real{Addr: netip.MustParseAddrPort("10.1.0.1:80")}}))
	f.Fuzz(func(t *testing.T, message []byte) {
		if s, _, ok := decodeServer(message); ok && !s.Addr.Addr().IsValid() {
			t.Errorf("a server without an address: %v", s)
		}
		for _, four := range []bool{true, false} {
			if r, ok := decodeReal(message, four); ok && !r.Addr.Addr().IsValid() {
				t.Errorf("a real server without an address: %v", r)
			}
		}
	})
}
