package ct_test

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ct/cttest"
)

const tcp, udp, sctp = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP

var addresses = gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

// TestContract checks that the kernel and the Fake behave in the same way.
func TestContract(t *testing.T) {
	implementations := map[string]func(*testing.T, []ct.Flow) ct.Interface{
		"kernel": func(t *testing.T, flows []ct.Flow) ct.Interface { return openInNamespace(t, flows) },
		"fake": func(_ *testing.T, flows []ct.Flow) ct.Interface {
			k := cttest.NewFake()
			k.Add(flows...)
			return k
		},
	}
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			for _, c := range contract {
				t.Run(c.name, func(t *testing.T) { c.check(t, open(t, tracked)) })
			}
		})
	}
}

// openInNamespace opens the kernel in a network namespace of the test's own,
// where flows are tracked. The namespace ends with the test's thread.
func openInNamespace(t testing.TB, flows []ct.Flow) *ct.Conn {
	t.Helper()
	lab.Namespace(t)
	peer, err := conntrack.Dial(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	for _, f := range flows {
		if err := peer.Create(entry(f)); err != nil {
			t.Fatalf("create %v: %v", &f, err)
		}
	}
	c, err := ct.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// entry is a flow as another implementation has it.
func entry(f ct.Flow) conntrack.Flow {
	e := conntrack.NewFlow(f.Protocol, conntrack.StatusConfirmed, f.Orig.Src.Addr(), f.Orig.Dst.Addr(),
		f.Orig.Src.Port(), f.Orig.Dst.Port(), 600, 0)
	e.TupleReply.IP.SourceAddress, e.TupleReply.IP.DestinationAddress = f.Reply.Src.Addr(), f.Reply.Dst.Addr()
	e.TupleReply.Proto.SourcePort, e.TupleReply.Proto.DestinationPort = f.Reply.Src.Port(), f.Reply.Dst.Port()
	e.Zone = f.Zone
	return e
}

func flow(protocol uint8, src, dst, by string) ct.Flow {
	a := netip.MustParseAddrPort
	return ct.Flow{
		Protocol: protocol,
		Orig:     ct.Tuple{a(src), a(dst)},
		Reply:    ct.Tuple{a(by), a(src)},
	}
}

func inZone(f ct.Flow, zone uint16) ct.Flow {
	f.Zone = zone
	return f
}

// tracked is what every contract begins with.
var tracked = []ct.Flow{
	flow(udp, "10.1.0.7:4000", "10.96.0.10:53", "10.1.0.2:5353"),
	flow(udp, "10.1.0.7:4001", "192.0.2.9:53", "192.0.2.9:53"),
	inZone(flow(udp, "10.1.0.7:4000", "10.96.0.10:53", "10.1.0.3:5353"), 7),
	flow(tcp, "10.1.0.7:4000", "10.96.0.10:53", "10.1.0.2:5353"),
	flow(sctp, "10.1.0.7:4000", "10.96.0.10:53", "10.1.0.2:5353"),
	flow(udp, "[fd00::7]:4000", "[fd96::a]:53", "[fd00::2]:5353"),
	flow(tcp, "[fd00::7]:4000", "[fd96::a]:53", "[fd00::2]:5353"),
}

type contractCase struct {
	name  string
	check func(*testing.T, ct.Interface)
}

var contract = []contractCase{
	{"dump UDP", func(t *testing.T, k ct.Interface) {
		wantFlows(t, k, ct.Filter{Protocol: udp}, tracked[0], tracked[1], tracked[2])
	}},
	{"dump SCTP", func(t *testing.T, k ct.Interface) { wantFlows(t, k, ct.Filter{Protocol: sctp}, tracked[4]) }},
	{"dump UDP over IPv6", func(t *testing.T, k ct.Interface) { wantFlows(t, k, ct.Filter{IPv6: true, Protocol: udp}, tracked[5]) }},
	{"dump what one client has with one address", func(t *testing.T, k ct.Interface) {
		four, six := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd00::7")
		wantFlows(t, k, ct.Filter{Protocol: udp, Src: four, Dst: netip.MustParseAddrPort("10.96.0.10:53")}, tracked[0], tracked[2])
		wantFlows(t, k, ct.Filter{Protocol: tcp, IPv6: true, Src: six, Dst: netip.MustParseAddrPort("[fd96::a]:53")}, tracked[6])
		wantFlows(t, k, ct.Filter{Protocol: udp, Src: four.Next(), Dst: netip.MustParseAddrPort("10.96.0.10:53")})
		wantFlows(t, k, ct.Filter{Protocol: udp, Src: four, Dst: netip.MustParseAddrPort("10.96.0.10:54")})
		if c, ok := k.(*ct.Conn); ok && c.Parsed() != 3 {
			t.Errorf("the kernel sent %d flows, want 3", c.Parsed())
		}
	}},
	{"dump nothing", func(t *testing.T, k ct.Interface) { wantFlows(t, k, ct.Filter{IPv6: true, Protocol: sctp}) }},
	{"keep decides", func(t *testing.T, k ct.Interface) {
		got, err := k.Dump(t.Context(), ct.Filter{Protocol: udp}, func(f *ct.Flow) bool { return f.Orig == tracked[1].Orig })
		if err != nil || len(got) != 1 || got[0].Reply != tracked[1].Reply {
			t.Errorf("flows %v, error %v; want only %v", got, err, &tracked[1])
		}
	}},
	{"some of them", func(t *testing.T, k ct.Interface) {
		for most := range 5 {
			got, err := k.Dump(t.Context(), ct.Filter{Protocol: udp, Most: most}, func(f *ct.Flow) bool { return f.Zone == 0 })
			if want := min(2, cmp.Or(most, 2)); err != nil || len(got) != want {
				t.Errorf("at most %d: flows %v, error %v; want %d", most, got, err, want)
			}
		}
	}},
	{"delete one", func(t *testing.T, k ct.Interface) {
		deleteThe(t, k, tracked[0])
		wantFlows(t, k, ct.Filter{Protocol: udp}, tracked[1], tracked[2])
		wantFlows(t, k, ct.Filter{Protocol: tcp}, tracked[3])
	}},
	{"delete in a zone", func(t *testing.T, k ct.Interface) {
		deleteThe(t, k, tracked[2])
		wantFlows(t, k, ct.Filter{Protocol: udp}, tracked[0], tracked[1])
	}},
	{"delete over IPv6", func(t *testing.T, k ct.Interface) {
		deleteThe(t, k, tracked[5])
		wantFlows(t, k, ct.Filter{IPv6: true, Protocol: udp})
		wantFlows(t, k, ct.Filter{IPv6: true, Protocol: tcp}, tracked[6])
	}},
	{"delete SCTP", func(t *testing.T, k ct.Interface) {
		deleteThe(t, k, tracked[4])
		wantFlows(t, k, ct.Filter{Protocol: sctp})
	}},
	{"delete twice", func(t *testing.T, k ct.Interface) {
		gone := deleteThe(t, k, tracked[0])
		if err := k.Delete(t.Context(), &gone); !errors.Is(err, ct.ErrNotFound) {
			t.Errorf("error %v; want %v", err, ct.ErrNotFound)
		}
	}},
	{"delete a successor", func(t *testing.T, k ct.Interface) {
		f := find(t, k, tracked[0])
		f.ID++
		if err := k.Delete(t.Context(), &f); !errors.Is(err, ct.ErrNotFound) {
			t.Errorf("error %v; want %v", err, ct.ErrNotFound)
		}
		wantFlows(t, k, ct.Filter{Protocol: udp}, tracked[0], tracked[1], tracked[2])
	}},
	{"cancelled", func(t *testing.T, k ct.Interface) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f := find(t, k, tracked[0])
		if err := k.Delete(ctx, &f); !errors.Is(err, context.Canceled) {
			t.Errorf("delete: %v; want %v", err, context.Canceled)
		}
		if _, err := k.Dump(ctx, ct.Filter{Protocol: udp}, all); !errors.Is(err, context.Canceled) {
			t.Errorf("dump: %v; want %v", err, context.Canceled)
		}
	}},
}

func all(*ct.Flow) bool { return true }

func wantFlows(t *testing.T, k ct.Interface, f ct.Filter, want ...ct.Flow) {
	t.Helper()
	got, err := k.Dump(t.Context(), f, all)
	if err != nil {
		t.Fatal(err)
	}
	byReply := func(a, b ct.Flow) int {
		return cmp.Or(a.Orig.Src.Compare(b.Orig.Src), a.Reply.Src.Compare(b.Reply.Src))
	}
	slices.SortFunc(got, byReply)
	slices.SortFunc(want, byReply)
	if diff := gocmp.Diff(want, got, addresses, cmpopts.IgnoreFields(ct.Flow{}, "ID"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("flows of %v mismatch (-want +got):\n%s", f, diff)
	}
}

func find(t *testing.T, k ct.Interface, f ct.Flow) ct.Flow {
	t.Helper()
	got, err := k.Dump(t.Context(), ct.Filter{IPv6: f.Orig.Dst.Addr().Is6(), Protocol: f.Protocol},
		func(have *ct.Flow) bool { return have.Orig == f.Orig && have.Zone == f.Zone })
	if err != nil || len(got) != 1 {
		t.Fatalf("flows %v, error %v; want one", got, err)
	}
	return got[0]
}

func deleteThe(t *testing.T, k ct.Interface, f ct.Flow) ct.Flow {
	t.Helper()
	f = find(t, k, f)
	if err := k.Delete(t.Context(), &f); err != nil {
		t.Fatal(err)
	}
	return f
}
