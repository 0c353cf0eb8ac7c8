package kubeproxy

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

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/kernel/sysctl/sysctltest"
)

// fakeIPVS is the ipvs mode's part of a kernel, in memory.
type fakeIPVS struct {
	on       *Link
	serving  []Server
	names    []string
	busy     map[string]time.Time // until when sets are in use
	refused  map[Server]error
	asked    []string
	linkFail error
}

func (k *fakeIPVS) link() (*Link, error) { return k.on, k.linkFail }

func (k *fakeIPVS) removeLink(l *Link) error {
	k.asked = append(k.asked, "link "+l.Name)
	k.on = nil
	return nil
}

func (k *fakeIPVS) servers() ([]Server, error) { return k.serving, nil }

func (k *fakeIPVS) removeServer(s Server) error {
	k.asked = append(k.asked, "server "+s.String())
	return k.refused[s]
}

func (k *fakeIPVS) sets() ([]string, error) { return k.names, nil }

func (k *fakeIPVS) removeSet(name string) error {
	if time.Now().Before(k.busy[name]) {
		return errBusy
	}
	k.asked = append(k.asked, "set "+name)
	return nil
}

// fakeHost returns a host in memory whose IPv4 legacy tables hold rules. Legacy,
// because those of nf_tables are looked at by netlink first.
func fakeHost(t *testing.T, rules string) (*host, *ipttest.Fake, *fakeIPVS) {
	t.Helper()
	programs, ipvs := ipttest.NewFake(), &fakeIPVS{}
	if err := programs.Restore(t.Context(), []byte(rules)); err != nil {
		t.Fatal(err)
	}
	programs.Reset()
	return &host{
		nft: nfttest.NewFake(),
		ipt: func(context.Context, ipt.Family, ipt.Variant) (ipt.Interface, error) { return programs, nil },
		legacyTables: func(f ipt.Family) ([]string, error) {
			if f == ipt.IPv4 && rules != "" {
				return []string{"nat", "filter"}, nil
			}
			return nil, nil
		},
		ipvs:    ipvs,
		sysctls: sysctltest.NewFake(map[string]string{localnet.Name: "0"}),
	}, programs, ipvs
}

const fewRules = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-TLDZHNCMVVVJGXPB - [0:0]
:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.10/32 -j KUBE-SVC-TLDZHNCMVVVJGXPB
COMMIT
`

func TestCleanupSaysWhatItDid(t *testing.T) {
	h, programs, ipvs := fakeHost(t, fewRules)
	var b nft.Batch
	b.AddTable(nft.Table{Family: nft.IP6, Name: "kube-proxy"})
	if err := h.nft.Commit(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	ipvs.on = &Link{Name: linkName, Addrs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::1")}}
	ipvs.serving = []Server{
		{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.96.0.10:80")},
		{unix.IPPROTO_UDP, netip.MustParseAddrPort("[fd00::1]:53")},
		{unix.IPPROTO_TCP, netip.MustParseAddrPort("192.0.2.1:30080")},
	}
	ipvs.names = []string{"KUBE-CLUSTER-IP", "KUBE-SRC-5M6VBQYA4MVW3SXO"}
	removed, err := h.cleanup(t.Context(), Keep{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"table ip6 kube-proxy",
		"table nat of iptables-legacy: 1 jump; chains KUBE-SERVICES; 2 chains of Services and endpoints",
		"IPVS virtual server TCP 10.96.0.10:80",
		"IPVS virtual server UDP [fd00::1]:53",
		"left alone: 1 IPVS virtual server at addresses that are not on link kube-ipvs0 (kube-proxy's node ports among them cannot be told from other programs' servers)",
		"link kube-ipvs0 and its addresses",
		"IP set KUBE-CLUSTER-IP",
	}
	if diff := cmp.Diff(want, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"server TCP 10.96.0.10:80", "server UDP [fd00::1]:53", "link kube-ipvs0", "set KUBE-CLUSTER-IP"}, ipvs.asked); diff != "" {
		t.Errorf("asked of the kernel (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(ipttest.Count{Saves: 1, Restores: 1, Lines: 9}, programs.Reset()); diff != "" {
		t.Errorf("asked of iptables (-want +got):\n%s", diff)
	}
}

// between runs something between the look at the rules and their removal.
type between struct {
	ipt.Interface
	do func()
}

func (b *between) Restore(ctx context.Context, input []byte) error {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.Interface.Restore(ctx, input)
}

func TestRulesThatChangeMeanwhileAreLookedAtAgain(t *testing.T) {
	tests := []struct{ name, change, want string }{
		{"a jump more", "*nat\n-I PREROUTING -j KUBE-SERVICES\nCOMMIT\n", "table nat of iptables-legacy: 2 jumps; chains KUBE-SERVICES; 2 chains of Services and endpoints"},
		{"a jump less", "*nat\n-D OUTPUT -j KUBE-SERVICES\nCOMMIT\n", "table nat of iptables-legacy: 0 jumps; chains KUBE-SERVICES; 2 chains of Services and endpoints"},
		{"everything gone", "*nat\n-D OUTPUT -j KUBE-SERVICES\n-F KUBE-SERVICES\n-X KUBE-SERVICES\n-X KUBE-SVC-TLDZHNCMVVVJGXPB\n-X KUBE-SVC-NPX46M4PTMTKRN6Y\nCOMMIT\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, programs, _ := fakeHost(t, fewRules)
			change := func() {
				if err := programs.Restore(t.Context(), []byte(tt.change)); err != nil {
					t.Error(err)
				}
			}
			racing := &between{programs, change}
			h.ipt = func(context.Context, ipt.Family, ipt.Variant) (ipt.Interface, error) { return racing, nil }
			removed, err := h.cleanup(t.Context(), Keep{})
			if err != nil || strings.Join(removed, "\n") != tt.want {
				t.Errorf("removed %q, error %v; want %q", removed, err, tt.want)
			}
			if l, err := h.find(t.Context()); err != nil || !l.Empty() {
				t.Errorf("left: %+v, error %v", l, err)
			}
		})
	}
}

// refusing refuses every restore.
type refusing struct {
	ipt.Interface
	err   error
	tries int
}

func (r *refusing) Restore(context.Context, []byte) error {
	r.tries++
	return r.err
}

func TestTriesAreBounded(t *testing.T) {
	tests := []struct {
		err   error
		tries int
	}{
		{ipt.ErrLocked, 1},
		{errors.New("line 2 failed"), restoreAttempts},
	}
	for _, tt := range tests {
		h, programs, _ := fakeHost(t, fewRules)
		refused := &refusing{Interface: programs, err: tt.err}
		h.ipt = func(context.Context, ipt.Family, ipt.Variant) (ipt.Interface, error) { return refused, nil }
		if _, err := h.cleanup(t.Context(), Keep{}); !errors.Is(err, tt.err) || refused.tries != tt.tries {
			t.Errorf("%d tries, error %v; want %d and %v", refused.tries, err, tt.tries, tt.err)
		}
	}
}

func TestOneFailureDoesNotKeepTheRest(t *testing.T) {
	h, programs, ipvs := fakeHost(t, fewRules)
	h.ipt = func(context.Context, ipt.Family, ipt.Variant) (ipt.Interface, error) {
		return &refusing{Interface: programs, err: ipt.ErrLocked}, nil
	}
	ipvs.linkFail = errors.New("look for link kube-ipvs0: no permission")
	ipvs.names = []string{"KUBE-CLUSTER-IP"}
	removed, err := h.cleanup(t.Context(), Keep{})
	if diff := cmp.Diff([]string{"IP set KUBE-CLUSTER-IP"}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	for _, want := range []string{"look for link kube-ipvs0: no permission", "remove kube-proxy's rules from table nat of iptables-legacy: another program holds the xtables lock"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestServersThatAreRefusedAreNamed(t *testing.T) {
	h, _, ipvs := fakeHost(t, "")
	ipvs.on = &Link{Name: linkName, Addrs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}
	stubborn, gone := Server{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.96.0.10:80")}, Server{unix.IPPROTO_SCTP, netip.MustParseAddrPort("10.96.0.10:81")}
	ipvs.serving = []Server{stubborn, gone}
	ipvs.refused = map[Server]error{stubborn: unix.EPERM, gone: unix.ESRCH}
	removed, err := h.cleanup(t.Context(), Keep{})
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
		h, _, ipvs := fakeHost(t, "")
		ipvs.names = []string{"KUBE-CLUSTER-IP", "KUBE-IPVS-IPS", "KUBE-LOOP-BACK"}
		ipvs.busy = map[string]time.Time{"KUBE-CLUSTER-IP": time.Now().Add(setWait / 2), "KUBE-IPVS-IPS": time.Now().Add(time.Hour)}
		removed, err := h.cleanup(t.Context(), Keep{})
		if diff := cmp.Diff([]string{"IP set KUBE-CLUSTER-IP", "IP set KUBE-LOOP-BACK"}, removed); diff != "" {
			t.Errorf("removed (-want +got):\n%s", diff)
		}
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "KUBE-IPVS-IPS") {
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
	header := []byte{1, 1, 0, 0}
	tests := []struct {
		name string
		svc  []byte // the attributes of the service
		want Server
		ok   bool
	}{
		{"four", join(attribute(1, native(unix.AF_INET)...), attribute(2, native(unix.IPPROTO_TCP)...), attribute(3, four...), attribute(4, 0, 80), attribute(6, []byte("rr\x00")...)), Server{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.96.0.10:80")}, true},
		{"six", join(attribute(1, native(unix.AF_INET6)...), attribute(2, native(unix.IPPROTO_UDP)...), attribute(3, six[:]...), attribute(4, 0, 53)), Server{unix.IPPROTO_UDP, netip.MustParseAddrPort("[fd00::1]:53")}, true},
		{"firewall mark", join(attribute(1, native(unix.AF_INET)...), attribute(5, 1, 0, 0, 0)), Server{}, false},
		{"cut", attribute(1, native(unix.AF_INET)...)[:5], Server{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := decodeServer(join(header, attribute(1|unix.NLA_F_NESTED, tt.svc...)))
			if got != tt.want || ok != tt.ok {
				t.Errorf("decoded %v, %t; want %v, %t", got, ok, tt.want, tt.ok)
			}
			if !tt.ok {
				return
			}
			if again, ok := decodeServer(append(header, encodeServer(tt.want).Serialize()...)); again != tt.want || !ok {
				t.Errorf("written and read again: %v, %t", again, ok)
			}
		})
	}
}

func FuzzDecodeServer(f *testing.F) {
	f.Add(append([]byte{1, 1, 0, 0}, encodeServer(Server{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.96.0.10:80")}).Serialize()...))
	f.Fuzz(func(t *testing.T, message []byte) {
		if s, ok := decodeServer(message); ok && !s.Addr.Addr().IsValid() {
			t.Errorf("a server without an address: %v", s)
		}
	})
}
