package ipvs_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/ipvs/ipvstest"
)

var addresses = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

// TestContract holds the kernel and the Fake to the same behaviour.
func TestContract(t *testing.T) {
	implementations := map[string]func(*testing.T) ipvs.Interface{
		"kernel": func(t *testing.T) ipvs.Interface { return openInNamespace(t) },
		"fake":   func(*testing.T) ipvs.Interface { return ipvstest.NewFake("rr", "wrr", "sh", "mh") },
	}
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			for _, c := range contract {
				t.Run(c.name, func(t *testing.T) { c.check(t, open(t)) })
			}
		})
	}
}

// openInNamespace opens the kernel in a network namespace of the test's own,
// which ends with the test's thread.
func openInNamespace(t testing.TB) *ipvs.Conn {
	t.Helper()
	lab.Namespace(t)
	ipvstest.Require(t)
	c, err := ipvs.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	lab.Loopback(t) // without a table of routes every address counts as a broadcast
	return c
}

func server(protocol uint8, addr string) ipvs.Server {
	return ipvs.Server{Protocol: protocol, Addr: netip.MustParseAddrPort(addr)}
}

func real(addr string, weight uint32) ipvs.Real {
	return ipvs.Real{Addr: netip.MustParseAddrPort(addr), Weight: weight}
}

var (
	web  = server(unix.IPPROTO_TCP, "10.96.0.10:80")
	dns6 = server(unix.IPPROTO_UDP, "[fd00:96::10]:53")
	call = server(unix.IPPROTO_SCTP, "10.96.0.10:80")
)

var contract = []struct {
	name  string
	check func(*testing.T, ipvs.Interface)
}{
	{"virtual servers come, change and go", func(t *testing.T, k ipvs.Interface) {
		first := map[ipvs.Server]ipvs.Settings{
			web: {Scheduler: "rr"}, dns6: {Scheduler: "sh", Persistence: 3 * time.Hour}, call: {Scheduler: "mh", HashPorts: true, Fallback: true},
		}
		for s, settings := range first {
			do(t, k, ipvs.Op{Verb: ipvs.Add, Server: s, Settings: settings})
		}
		wantServers(t, k, first)
		do(
			t, k, ipvs.Op{Verb: ipvs.Set, Server: web, Settings: ipvs.Settings{Scheduler: "wrr", Persistence: time.Minute}},
			ipvs.Op{Verb: ipvs.Set, Server: dns6, Settings: ipvs.Settings{Scheduler: "rr"}},
			ipvs.Op{Verb: ipvs.Delete, Server: call},
		)
		wantServers(t, k, map[ipvs.Server]ipvs.Settings{web: {Scheduler: "wrr", Persistence: time.Minute}, dns6: {Scheduler: "rr"}})
	}},
	{"real servers come, change and go", func(t *testing.T, k ipvs.Interface) {
		for s, at := range map[ipvs.Server][2]string{web: {"10.1.0.1:8080", "10.1.0.2:8080"}, dns6: {"[fd00::1]:53", "[fd00::2]:53"}} {
			do(
				t, k, ipvs.Op{Verb: ipvs.Add, Server: s, Settings: ipvs.Settings{Scheduler: "rr"}},
				ipvs.Op{Verb: ipvs.Add, Server: s, Real: real(at[0], 1)}, ipvs.Op{Verb: ipvs.Add, Server: s, Real: real(at[1], 7)},
			)
			wantReals(t, k, s, real(at[0], 1), real(at[1], 7))
			do(t, k, ipvs.Op{Verb: ipvs.Set, Server: s, Real: real(at[1], 0)}, ipvs.Op{Verb: ipvs.Delete, Server: s, Real: real(at[0], 0)})
			wantReals(t, k, s, real(at[1], 0))
		}
		do(t, k, ipvs.Op{Verb: ipvs.Delete, Server: web})
		wantReals(t, k, web)
	}},
	{"what is refused does not keep the rest", func(t *testing.T, k ipvs.Interface) {
		rr := ipvs.Settings{Scheduler: "rr"}
		ops := []ipvs.Op{
			{Verb: ipvs.Add, Server: web, Settings: rr},
			{Verb: ipvs.Add, Server: web, Settings: rr},
			{Verb: ipvs.Set, Server: dns6, Settings: rr},
			{Verb: ipvs.Delete, Server: dns6},
			{Verb: ipvs.Add, Server: call, Settings: ipvs.Settings{Scheduler: "no-such-thing"}},
			{Verb: ipvs.Add, Server: dns6, Real: real("[fd00::1]:53", 1)},
			{Verb: ipvs.Add, Server: web, Real: real("10.1.0.1:80", 1)},
			{Verb: ipvs.Add, Server: web, Real: real("10.1.0.1:80", 1)},
			{Verb: ipvs.Set, Server: web, Real: real("10.1.0.2:80", 1)},
			{Verb: ipvs.Delete, Server: web, Real: real("10.1.0.2:80", 1)},
			{Verb: ipvs.Add, Server: web, Real: real("10.1.0.3:80", 1)},
		}
		want := map[int]error{
			1: unix.EEXIST, 2: unix.ESRCH, 3: unix.ESRCH, 4: unix.ENOENT, 5: unix.ESRCH, 7: unix.EEXIST, 8: unix.ENOENT, 9: unix.ENOENT,
		}
		refused, err := k.Do(t.Context(), ops)
		if err != nil {
			t.Fatal(err)
		}
		for i := range ops {
			if !errors.Is(refused[i], want[i]) {
				t.Errorf("%v: error %v, want %v", ops[i], refused[i], want[i])
			}
		}
		wantReals(t, k, web, real("10.1.0.1:80", 1), real("10.1.0.3:80", 1))
	}},
	{"many at once", func(t *testing.T, k ipvs.Interface) {
		var ops []ipvs.Op
		want := map[ipvs.Server]ipvs.Settings{}
		for i := range 3000 {
			s := server(unix.IPPROTO_TCP, fmt.Sprintf("10.97.%d.%d:80", i>>8, i&255))
			want[s] = ipvs.Settings{Scheduler: "rr"}
			ops = append(ops, ipvs.Op{Verb: ipvs.Add, Server: s, Settings: want[s]}, ipvs.Op{Verb: ipvs.Add, Server: s, Real: real("10.1.0.1:80", 1)})
		}
		do(t, k, ops...)
		wantServers(t, k, want)
	}},
	{"timeouts", func(t *testing.T, k ipvs.Interface) {
		if err := k.SetTimeouts(t.Context(), ipvs.Timeouts{TCP: time.Hour, UDP: time.Minute}); err != nil {
			t.Error(err)
		}
	}},
}

func do(t *testing.T, k ipvs.Interface, ops ...ipvs.Op) {
	t.Helper()
	refused, err := k.Do(t.Context(), ops)
	if err != nil || len(refused) > 0 {
		t.Fatalf("refused %v, error %v", refused, err)
	}
}

func wantServers(t *testing.T, k ipvs.Interface, want map[ipvs.Server]ipvs.Settings) {
	t.Helper()
	got, err := k.Servers(t.Context())
	if diff := cmp.Diff(want, got, addresses); diff != "" || err != nil {
		t.Errorf("servers (-want +got), error %v:\n%s", err, diff)
	}
	for _, s := range []ipvs.Server{web, dns6, call} {
		settings, there := want[s]
		if got, found, err := k.Server(t.Context(), s); got != settings || found != there || err != nil {
			t.Errorf("%v: %+v, %t, error %v; want %+v, %t", s, got, found, err, settings, there)
		}
	}
}

func wantReals(t *testing.T, k ipvs.Interface, s ipvs.Server, want ...ipvs.Real) {
	t.Helper()
	all, err := k.Reals(t.Context(), s)
	var got []ipvs.Real
	for _, r := range all {
		if got = append(got, r.Real); r.Connections != 0 {
			t.Errorf("%+v; want one without connections", r)
		}
	}
	slices.SortFunc(got, func(a, b ipvs.Real) int { return a.Addr.Compare(b.Addr) })
	if diff := cmp.Diff(want, got, addresses); diff != "" || err != nil {
		t.Errorf("real servers of %v (-want +got), error %v:\n%s", s, err, diff)
	}
}
