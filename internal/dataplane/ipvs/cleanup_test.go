package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
	"sluice/internal/proxy"
)

// fakeKernel is a kernel in memory.
type fakeKernel struct {
	on       *serviceLink
	serving  []server
	names    []string
	busy     map[string]time.Time // until when sets are in use
	refused  map[server]error
	asked    []string
	linkFail error
}

func (k *fakeKernel) link() (*serviceLink, error) { return k.on, k.linkFail }

func (k *fakeKernel) removeLink(*serviceLink) error {
	k.asked = append(k.asked, "link")
	k.on = nil
	return nil
}

func (k *fakeKernel) servers(context.Context) ([]server, error) { return k.serving, nil }

func (k *fakeKernel) removeServer(_ context.Context, s server) error {
	k.asked = append(k.asked, s.String())
	return k.refused[s]
}

func (k *fakeKernel) sets(context.Context) ([]string, error) { return k.names, nil }

func (k *fakeKernel) removeSet(_ context.Context, name string) error {
	if time.Now().Before(k.busy[name]) {
		return errBusy
	}
	k.asked = append(k.asked, "set "+name)
	return nil
}

func TestCleanupSaysWhatItDid(t *testing.T) {
	k := &fakeKernel{on: &serviceLink{addrs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::1")}}}
	k.serving = []server{
		{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.96.0.10:80")},
		{unix.IPPROTO_UDP, netip.MustParseAddrPort("[fd00::1]:53")},
		{unix.IPPROTO_TCP, netip.MustParseAddrPort("192.0.2.1:30080")},
	}
	k.names = []string{"KUBE-CLUSTER-IP", "KUBE-SRC-5M6VBQYA4MVW3SXO"}
	removed, err := cleanup(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"IPVS virtual server TCP 10.96.0.10:80",
		"IPVS virtual server UDP [fd00::1]:53",
		"left alone: 1 IPVS virtual server at addresses that are not on link kube-ipvs0 (kube-proxy's node ports among them cannot be told from other programs' servers)",
		"link kube-ipvs0 and its addresses",
		"IP set KUBE-CLUSTER-IP",
	}
	if diff := cmp.Diff(want, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"IPVS virtual server TCP 10.96.0.10:80", "IPVS virtual server UDP [fd00::1]:53", "link", "set KUBE-CLUSTER-IP"}, k.asked); diff != "" {
		t.Errorf("asked of the kernel (-want +got):\n%s", diff)
	}
}

func TestOneFailureDoesNotKeepTheRest(t *testing.T) {
	k := &fakeKernel{linkFail: errors.New("look for link kube-ipvs0: no permission"), names: []string{"KUBE-CLUSTER-IP"}}
	removed, err := cleanup(t.Context(), k)
	if diff := cmp.Diff([]string{"IP set KUBE-CLUSTER-IP"}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if !errors.Is(err, k.linkFail) {
		t.Errorf("error %v, want %v", err, k.linkFail)
	}
}

func TestServersThatAreRefusedAreNamed(t *testing.T) {
	k := &fakeKernel{}
	k.on = &serviceLink{addrs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}
	stubborn, gone := server{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.96.0.10:80")}, server{unix.IPPROTO_SCTP, netip.MustParseAddrPort("10.96.0.10:81")}
	k.serving = []server{stubborn, gone}
	k.refused = map[server]error{stubborn: unix.EPERM, gone: unix.ESRCH}
	removed, err := cleanup(t.Context(), k)
	if diff := cmp.Diff([]string{"link kube-ipvs0 and its addresses"}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if want := "remove IPVS virtual server TCP 10.96.0.10:80: operation not permitted"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestBusySets has one set that the kernel lets go of after a moment and one
// that it does not.
func TestBusySets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{}
		k.names = []string{"KUBE-CLUSTER-IP", "KUBE-IPVS-IPS", "KUBE-LOOP-BACK"}
		k.busy = map[string]time.Time{"KUBE-CLUSTER-IP": time.Now().Add(setWait / 2), "KUBE-IPVS-IPS": time.Now().Add(time.Hour)}
		removed, err := cleanup(t.Context(), k)
		if diff := cmp.Diff([]string{"IP set KUBE-CLUSTER-IP", "IP set KUBE-LOOP-BACK"}, removed); diff != "" {
			t.Errorf("removed (-want +got):\n%s", diff)
		}
		if !errors.Is(err, proxy.ErrInUse) || !strings.Contains(err.Error(), "KUBE-IPVS-IPS") {
			t.Errorf("error %v, want KUBE-IPVS-IPS in use", err)
		}
	})
}

// TestServerMessages reads and writes servers as IPVS's messages have them.
func TestServerMessages(t *testing.T) {
	attribute := func(kind uint16, value ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = append(b, value...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	native := func(v uint16) []byte { return binary.NativeEndian.AppendUint16(nil, v) }
	four := make([]byte, 16)
	copy(four, []byte{10, 96, 0, 10})
	six := netip.MustParseAddr("fd00::1").As16()
	tests := []struct {
		name string
		svc  []byte // the attributes of the service
		want server
		ok   bool
	}{
		{"four", join(attribute(1, native(unix.AF_INET)...), attribute(2, native(unix.IPPROTO_TCP)...), attribute(3, four...), attribute(4, 0, 80), attribute(6, []byte("rr\x00")...)), server{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.96.0.10:80")}, true},
		{"six", join(attribute(1, native(unix.AF_INET6)...), attribute(2, native(unix.IPPROTO_UDP)...), attribute(3, six[:]...), attribute(4, 0, 53)), server{unix.IPPROTO_UDP, netip.MustParseAddrPort("[fd00::1]:53")}, true},
		{"firewall mark", join(attribute(1, native(unix.AF_INET)...), attribute(5, 1, 0, 0, 0)), server{}, false},
		{"cut", attribute(1, native(unix.AF_INET)...)[:5], server{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := decodeServer(attribute(1|unix.NLA_F_NESTED, tt.svc...))
			if got != tt.want || ok != tt.ok {
				t.Errorf("decoded %v, %t; want %v, %t", got, ok, tt.want, tt.ok)
			}
			if !tt.ok {
				return
			}
			if again, ok := decodeServer(encoded(tt.want)); again != tt.want || !ok {
				t.Errorf("written and read again: %v, %t", again, ok)
			}
		})
	}
}

// encoded returns the attributes of a request about a server.
func encoded(s server) []byte {
	var b netlink.Builder
	b.Begin(0, 0, [4]byte{})
	encodeServer(&b, s)
	return b.Bytes()[unix.SizeofNlMsghdr+4:]
}

func FuzzDecodeServer(f *testing.F) {
	f.Add(encoded(server{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.96.0.10:80")}))
	f.Fuzz(func(t *testing.T, message []byte) {
		if s, ok := decodeServer(message); ok && !s.addr.Addr().IsValid() {
			t.Errorf("a server without an address: %v", s)
		}
	})
}

func TestSetNamesAreKnown(t *testing.T) {
	for _, name := range []string{"KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"} {
		if !isSet(name) {
			t.Errorf("%s is not known", name)
		}
	}
	for _, name := range []string{"KUBE-SRC-5M6VBQYA4MVW3SXO", "KUBE-", "KUBE-CLUSTER-IP-OF-MINE", "CLUSTER-IP", "KUBE-6-CLUSTER", "kube-cluster-ip"} {
		if isSet(name) {
			t.Errorf("%s is taken for kube-proxy's", name)
		}
	}
}
