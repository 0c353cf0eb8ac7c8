package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

const one, two, three = "10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"

func (h *host) wantReals(s ipvs.Server, want map[string]uint32) {
	h.t.Helper()
	if diff := cmp.Diff(want, h.reals(s)); diff != "" {
		h.t.Errorf("real servers of %v (-want +got):\n%s", s, diff)
	}
}

// wantAddresses expects the addresses that are on the link or routed to it.
func (h *host) wantAddresses(want ...string) {
	h.t.Helper()
	on, routed, err := h.link.List()
	if got := strings.Trim(fmt.Sprint(slices.SortedFunc(slices.Values(append(on, routed...)), netip.Addr.Compare)), "[]"); got != strings.Join(want, " ") || err != nil {
		h.t.Errorf("addresses %s, error %v; want %v", got, err, want)
	}
}

var aliasNames = []string{"192.0.0.8", "100::8"}

// TestCost has operations follow the change, not the number of Services.
func TestCost(t *testing.T) {
	for _, n := range []int{100, proxytest.Many(10_000)} {
		h := newHost(t)
		d := h.open(mode.IPVS{})
		var rows []*proxy.ServicePort
		for i := range n {
			rows = append(rows, service(i, proxy.TCP, one, two))
		}
		h.sync(d, rows...)
		steps := []struct {
			name      string
			old, cur  *proxy.ServicePort
			ops, link int
		}{
			{"replace an endpoint", rows[50], service(50, proxy.TCP, one, three), 2, 0},
			{"add an endpoint", rows[51], service(51, proxy.TCP, one, two, three), 1, 0},
			{"add a Service", nil, service(n, proxy.TCP, one, two), 3, 1},
			{"remove a Service", rows[52], nil, 1, 1},
		}
		for _, s := range steps {
			h.apply(d, s.old, s.cur)
			count, done := h.servers.Reset()
			if want := (ipvstest.Count{Ops: s.ops}); count != want || h.link.Reset().Addresses != s.link {
				t.Errorf("%d Services, %s: %+v; want %+v and %d changes of addresses: %v", n, s.name, count, want, s.link, done)
			}
			if c := h.rules.Reset(); c.Lists != 0 {
				t.Errorf("%d Services, %s: rules were listed %d times", n, s.name, c.Lists)
			}
		}
		h.apply(d, nil, service(n+1, proxy.UDP, one))
		h.sync(d, rows...)
		proxytest.MustSync(t, d, stateOf(rows...))
		if count, done := h.servers.Reset(); count.Ops != 0 {
			t.Errorf("Sync onto a right kernel made %v", done)
		}
	}
}

// TestFewServersAreEmpty at any moment of a first Sync: who asks one is refused.
func TestFewServersAreEmpty(t *testing.T) {
	h := newHost(t)
	var rows []*proxy.ServicePort
	for i := range changesAtOnce { // of three changes each
		rows = append(rows, service(i, proxy.TCP, one, two))
	}
	if err := proxytest.Sync(t.Context(), h.open(mode.IPVS{}), stateOf(rows...)); err != nil {
		t.Fatal(err)
	}
	empty, most := map[string]bool{}, 0
	_, done := h.servers.Reset()
	for _, op := range done {
		if _, server, ok := strings.Cut(op, " of "); ok {
			delete(empty, server)
		} else {
			empty[strings.TrimPrefix(op, "add ")] = true
		}
		most = max(most, len(empty))
	}
	if len(done) != 3*len(rows) || len(empty) > 0 || most > serversAtOnce {
		t.Errorf("%d operations, %d servers without real servers at once, %d in the end; want %d, at most %d, none",
			len(done), most, len(empty), 3*len(rows), serversAtOnce)
	}
	parts := 4 // beside the aliases, which are the first, each may end with fewer servers
	if c := h.link.Reset(); c.Addresses != len(aliases)+len(rows) || c.Calls > 1+len(rows)/bindAtOnce+parts {
		t.Errorf("%+v; want one call for %d servers", c, bindAtOnce)
	}
}

// TestDraining has real servers of TCP keep their connections and go when they
// have none, beside everything else.
func TestDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		d := h.open(mode.IPVS{})
		both, first := service(1, proxy.TCP, one, two), service(1, proxy.TCP, one)
		s := at(both)
		h.sync(d, both)
		go func() { _ = d.Run(t.Context()) }()
		h.servers.Connect(s, netip.MustParseAddrPort(two), 1)

		h.apply(d, both, first)
		time.Sleep(time.Minute)
		h.wantReals(s, map[string]uint32{one: 1, two: 0})

		h.apply(d, first, both)
		time.Sleep(time.Minute)
		h.wantReals(s, map[string]uint32{one: 1, two: 1})

		none := service(1, proxy.TCP)
		h.apply(d, both, none)
		time.Sleep(time.Minute)
		h.wantReals(s, map[string]uint32{two: 0})

		h.servers.Connect(s, netip.MustParseAddrPort(two), 0)
		time.Sleep(time.Minute)
		h.wantReals(s, map[string]uint32{})
		h.wantAddresses("10.96.0.1", aliasNames[0], aliasNames[1])

		h.apply(d, none, nil)
		h.wantReals(s, nil)
		h.wantAddresses(aliasNames...)
	})
}

// TestPortsThatGo has a virtual server of TCP drain while its address has another port:
// it gets no new connections, and goes with its last one or with its address. One of
// UDP goes at once.
func TestPortsThatGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		d := h.open(mode.IPVS{})
		on := func(p proxy.Protocol, port uint16) *proxy.ServicePort {
			sp := service(1, p, one, two)
			sp.Key.Name, sp.Frontends[0].Addr = fmt.Sprint(port), netip.AddrPortFrom(at(sp).Addr.Addr(), port)
			return sp
		}
		stays, goes, back, datagrams := on(proxy.UDP, 53), on(proxy.TCP, 80), on(proxy.TCP, 81), on(proxy.UDP, 54)
		h.sync(d, stays, goes, back, datagrams)
		go func() { _ = d.Run(t.Context()) }()
		for _, sp := range []*proxy.ServicePort{goes, back, datagrams} {
			h.servers.Connect(at(sp), netip.MustParseAddrPort(two), 1)
			h.apply(d, sp, nil)
		}
		time.Sleep(time.Minute)
		h.wantReals(at(goes), map[string]uint32{two: 0})
		h.wantReals(at(datagrams), nil)
		h.apply(d, nil, back)
		time.Sleep(time.Minute)
		h.wantReals(at(back), map[string]uint32{one: 1, two: 1})

		h.apply(d, back, nil)
		h.servers.Connect(at(goes), netip.MustParseAddrPort(two), 0)
		time.Sleep(time.Minute)
		h.wantReals(at(goes), nil)
		h.sync(d, stays)
		h.wantReals(at(back), map[string]uint32{two: 0})

		h.apply(d, stays, nil)
		h.wantReals(at(back), nil)
		h.wantAddresses(aliasNames...)
	})
}

// TestFrontendsThatAreLeft has a virtual server drain when the rules translate
// for its frontend: after kube-proxy, or when the host gets its address.
func TestFrontendsThatAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		d := h.open(mode.IPVS{})
		row := service(1, proxy.TCP, one, two)
		s := at(row)
		own := []netip.Addr{s.Addr.Addr()}
		h.sync(d, row)
		go func() { _ = d.Run(t.Context()) }()
		h.servers.Connect(s, netip.MustParseAddrPort(two), 1)

		h.other = own
		h.sync(d, row)
		time.Sleep(time.Minute)
		h.wantReals(s, map[string]uint32{two: 0})
		h.sync(d, row)
		h.wantReals(s, map[string]uint32{two: 0})
		h.other = nil
		h.sync(d, row)
		h.wantReals(s, map[string]uint32{one: 1, two: 1})

		h.other = own
		h.sync(d, row)
		h.servers.Connect(s, netip.MustParseAddrPort(two), 0)
		time.Sleep(time.Minute)
		h.wantReals(s, nil)
		h.wantAddresses(aliasNames...)
	})
}

// TestAfterUserspace has the rules choose for as long as IPVS would take what is on
// its way to a socket.
func TestAfterUserspace(t *testing.T) {
	h := newHost(t)
	h.relays = true
	d := h.open(mode.IPVS{})
	row, next := service(1, proxy.TCP, one, two), service(1, proxy.TCP, one)
	h.sync(d, row)
	h.apply(d, row, next)
	h.wantReals(at(row), nil)
	h.wantAddresses(aliasNames...)
	h.relays = false
	h.sync(d, next)
	h.wantReals(at(row), map[string]uint32{one: 1})
}

// TestRestartDrainsOn has another daemon find what drains.
func TestRestartDrainsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		both, first := service(1, proxy.TCP, one, two), service(1, proxy.TCP, one)
		d := h.open(mode.IPVS{})
		h.sync(d, both)
		h.servers.Connect(at(both), netip.MustParseAddrPort(two), 1)
		h.apply(d, both, first)

		d = h.open(mode.IPVS{})
		h.sync(d, first)
		h.wantReals(at(both), map[string]uint32{one: 1, two: 0})
		go func() { _ = d.Run(t.Context()) }()
		h.servers.Connect(at(both), netip.MustParseAddrPort(two), 0)
		time.Sleep(time.Minute)
		h.wantReals(at(both), map[string]uint32{one: 1})
	})
}

// TestFlowsEnd has real servers of UDP and SCTP go at once, unless they drain.
func TestFlowsEnd(t *testing.T) {
	for _, p := range []proxy.Protocol{proxy.UDP, proxy.SCTP} {
		h := newHost(t)
		d := h.open(mode.IPVS{})
		both, first, drains := service(1, p, one, two), service(1, p, one), service(1, p, one)
		drains.Draining = []netip.AddrPort{netip.MustParseAddrPort(two)}
		h.sync(d, both)
		h.apply(d, both, drains)
		h.wantReals(at(both), map[string]uint32{one: 1, two: 0})
		h.sync(d, drains)
		h.wantReals(at(both), map[string]uint32{one: 1, two: 0})
		h.apply(d, drains, first)
		h.wantReals(at(both), map[string]uint32{one: 1})
		h.apply(d, first, nil)
		h.wantReals(at(both), nil)
		h.wantAddresses(aliasNames...)
	}
}

// TestFlowsOfTheOtherList stay with a real server that serves, though it is not one of the
// list that the frontend takes now.
func TestFlowsOfTheOtherList(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	nodePort := proxy.Frontend{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(proxy.IPv4.Unspecified(), 30053)}
	row := func(p proxy.Protocol, internal proxy.Scope, endpoints ...string) *proxy.ServicePort {
		sp := service(1, p, endpoints...)
		sp.Frontends, sp.Internal, sp.Local = append(sp.Frontends, nodePort), internal, sp.Cluster[:1]
		return sp
	}
	for _, p := range []proxy.Protocol{proxy.UDP, proxy.SCTP} {
		all, local := row(p, proxy.ScopeCluster, one, two), row(p, proxy.ScopeLocal, one, two)
		h.sync(d, all)
		h.apply(d, all, local)
		h.wantReals(at(local), map[string]uint32{one: 1, two: 0})
		h.wantReals(ipvs.Server{Protocol: uint8(p), Addr: netip.AddrPortFrom(aliases[proxy.IPv4], 30053)}, map[string]uint32{one: 1, two: 1})
		h.apply(d, local, row(p, proxy.ScopeLocal, one))
		h.wantReals(at(local), map[string]uint32{one: 1})
	}
}

// TestForeignServers leaves others' virtual servers alone, and refuses the row
// that would have one's address.
func TestForeignServers(t *testing.T) {
	h := newHost(t)
	theirs, mine := service(1, proxy.TCP, one), service(2, proxy.TCP, two)
	far := ipvs.Server{Protocol: 6, Addr: netip.MustParseAddrPort("192.0.2.1:80")}
	for _, s := range []ipvs.Server{at(theirs), far} {
		h.do(ipvs.Op{Server: s, Settings: ipvs.Settings{Scheduler: "wrr"}})
	}
	want := "ns/10.96.0.1/TCP/IPv4: IPVS virtual server TCP 10.96.0.1:80 belongs to another program, since its address is not on link kube-ipvs0: " +
		"delete it, or change the Service"
	check := func(err error) {
		t.Helper()
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
		h.wantReals(at(theirs), map[string]uint32{})
		h.wantReals(far, map[string]uint32{})
		h.wantReals(at(mine), map[string]uint32{two: 1})
		h.wantAddresses("10.96.0.2", aliasNames[0], aliasNames[1])
	}
	check(proxytest.Sync(t.Context(), h.open(mode.IPVS{}), stateOf(theirs, mine)))

	// The same while we run: only the kernel says so then.
	d := h.open(mode.IPVS{})
	h.sync(d, mine)
	d.foreign = nil
	check(proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{New: theirs}}}))
	h.do(ipvs.Op{Verb: ipvs.Delete, Server: at(theirs)})
	h.apply(d, nil, theirs)
	h.wantReals(at(theirs), map[string]uint32{one: 1})
}

// TestForeignServerAtAnotherPort stays when a Service comes to its address, over restarts
// too: rules translate for the Service, and the address is not on our link.
func TestForeignServerAtAnotherPort(t *testing.T) {
	h := newHost(t)
	row := service(1, proxy.TCP, one)
	theirs := ipvs.Server{Protocol: 6, Addr: netip.AddrPortFrom(row.Frontends[0].Addr.Addr(), 9999)}
	h.do(ipvs.Op{Server: theirs, Settings: ipvs.Settings{Scheduler: "wrr"}})
	var d *Dataplane
	for i := range 4 {
		if i%2 == 0 {
			d = h.open(mode.IPVS{})
		}
		h.sync(d, row)
		if err := d.drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.wantReals(theirs, map[string]uint32{})
		h.wantReals(at(row), nil)
		h.wantAddresses(aliasNames...)
	}
	h.do(ipvs.Op{Verb: ipvs.Delete, Server: theirs})
	h.sync(d, row)
	h.wantReals(at(row), map[string]uint32{one: 1})
}

// TestRefusedRows have neither servers nor rules, and the rest goes on.
func TestRefusedRows(t *testing.T) {
	h := newHost(t)
	bad, good := service(1, proxy.TCP, one), service(2, proxy.TCP, two)
	bad.Balancing = proxy.Maglev
	h.servers = ipvstest.NewFake("rr")
	d := h.open(mode.IPVS{})
	err := proxytest.Sync(t.Context(), d, stateOf(bad, good))
	want := "ns/10.96.0.1/TCP/IPv4: the kernel has no IPVS scheduler mh: load module ip_vs_mh, or choose another --ipvs-scheduler"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	h.wantReals(at(good), map[string]uint32{two: 1})
	h.wantAddresses("10.96.0.2", aliasNames[0], aliasNames[1])
	sound := service(1, proxy.TCP, one)
	h.apply(d, bad, sound)
	h.wantReals(at(bad), map[string]uint32{one: 1})
}

// TestRefusedChangeKeepsServers refuses the new version of a row, as often as it is tried:
// the engine syncs the earlier one, and no server of that goes.
func TestRefusedChangeKeepsServers(t *testing.T) {
	h := newHost(t)
	good, bad := service(1, proxy.TCP, one), service(1, proxy.TCP, one)
	bad.Balancing = proxy.Maglev
	h.servers = ipvstest.NewFake("rr")
	d := h.open(mode.IPVS{})
	h.sync(d, good)
	h.servers.Reset()
	for range 2 {
		if err := proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: good, New: bad}}}); err == nil {
			t.Error("the scheduler is not refused")
		}
		h.wantReals(at(good), map[string]uint32{one: 1})
		h.sync(d, good)
	}
	if _, done := h.servers.Reset(); slices.ContainsFunc(done, func(op string) bool { return strings.HasPrefix(op, "delete") }) {
		t.Errorf("servers were deleted: %q", done)
	}
}

// TestStale removes what is at addresses of our link and not wanted, but for
// what is excluded.
func TestStale(t *testing.T) {
	h := newHost(t)
	gone, excluded, mine := service(1, proxy.UDP, one), service(256, proxy.UDP, one), service(2, proxy.TCP, two)
	h.sync(h.open(mode.IPVS{}), gone, excluded, mine)
	if refused := h.link.Add(netip.MustParseAddr("10.96.0.3")); len(refused) > 0 {
		t.Fatal(refused)
	}
	d := h.open(mode.IPVS{ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.1.0/24")}})
	h.sync(d, mine)
	h.wantReals(at(gone), nil)
	h.wantReals(at(excluded), map[string]uint32{one: 1})
	h.wantReals(at(mine), map[string]uint32{two: 1})
	h.wantAddresses("10.96.0.2", "10.96.1.0", aliasNames[0], aliasNames[1])
}

// TestRefusedRowLeavesNothing has one of a row's frontends refused: there is nothing of
// the others, and nothing goes of its earlier form.
func TestRefusedRowLeavesNothing(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	old, theirs := service(1, proxy.TCP, one), service(2, proxy.TCP, two)
	h.sync(d, old)
	h.do(ipvs.Op{Server: at(theirs), Settings: ipvs.Settings{Scheduler: "wrr"}})
	free := service(3, proxy.TCP, one)
	moved := *old
	moved.Frontends = []proxy.Frontend{free.Frontends[0], theirs.Frontends[0]}
	if err := proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: &moved}}}); err == nil {
		t.Error("a row is not refused whose frontend is another program's")
	}
	h.wantReals(at(old), map[string]uint32{one: 1})
	h.wantReals(at(theirs), map[string]uint32{})
	h.wantAddresses("10.96.0.1", aliasNames[0], aliasNames[1])
	if all, err := h.servers.Servers(t.Context()); len(all) != 2 || err != nil {
		t.Errorf("virtual servers %v, error %v; want the earlier form's and the other program's", all, err)
	}
}

// TestForeignChanges are undone by Sync, and an Apply that meets one asks for it.
func TestForeignChanges(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	sp := service(1, proxy.TCP, one, two)
	h.sync(d, sp)
	h.do(ipvs.Op{Verb: ipvs.Delete, Server: at(sp)})
	more := service(1, proxy.TCP, one, two, three)
	err := proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: sp, New: more}}})
	if !errors.Is(err, proxy.ErrNeedSync) {
		t.Errorf("error %v, want %v", err, proxy.ErrNeedSync)
	}
	h.sync(d, more)
	h.wantReals(at(sp), map[string]uint32{one: 1, two: 1, three: 1})
}

// TestSchedulers says how rows become settings.
func TestSchedulers(t *testing.T) {
	plain, sticky, weighted, hashed := service(1, proxy.TCP, one, two), service(2, proxy.TCP, one), service(3, proxy.TCP, one, two), service(4, proxy.TCP, one)
	sticky.Affinity, weighted.Cluster[1].Weight, hashed.Balancing = 3*time.Hour, 5, proxy.Maglev
	h := newHost(t)
	h.sync(h.open(mode.IPVS{}), plain, sticky, weighted, hashed)
	got, err := h.servers.Servers(t.Context())
	want := map[ipvs.Server]ipvs.Settings{
		at(plain): {Scheduler: "rr"}, at(sticky): {Scheduler: "rr", Persistence: 3 * time.Hour}, at(weighted): {Scheduler: "wrr"},
		at(hashed): {Scheduler: "mh", Fallback: true},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" || err != nil {
		t.Errorf("servers (-want +got), error %v:\n%s", err, diff)
	}
	h.wantReals(at(weighted), map[string]uint32{one: 1, two: 5})
	h.sync(h.open(mode.IPVS{Scheduler: "mh"}), plain)
	if all, _ := h.servers.Servers(t.Context()); all[at(plain)] != (ipvs.Settings{Scheduler: "mh", HashPorts: true, Fallback: true}) {
		t.Errorf("settings %+v", all[at(plain)])
	}
}

// TestAffinityChanges changes the settings of a virtual server, which keeps its real servers.
func TestAffinityChanges(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	plain, sticky := service(1, proxy.TCP, one, two), service(1, proxy.TCP, one, two)
	sticky.Affinity = time.Hour
	h.sync(d, plain)
	for _, step := range [][2]*proxy.ServicePort{{plain, sticky}, {sticky, plain}} {
		h.apply(d, step[0], step[1])
		count, done := h.servers.Reset()
		settings, there, err := h.servers.Server(t.Context(), at(plain))
		if !there || err != nil || settings.Persistence != step[1].Affinity || count.Ops != 1 {
			t.Errorf("persistence %v, error %v after %v; want %v", settings.Persistence, err, done, step[1].Affinity)
		}
		h.wantReals(at(plain), map[string]uint32{one: 1, two: 1})
	}
}

// TestSettings are noted on the link, put back when they are not wanted any more
// and by the clean-up.
func TestSettings(t *testing.T) {
	h := newHost(t)
	sp := service(1, proxy.TCP, one)
	read := func(name string) string { v, _ := h.settings.Read(name); return v }
	h.sync(h.open(mode.IPVS{StrictARP: true, TCPTimeout: time.Hour}), sp)
	if read("net/ipv4/vs/conntrack") != "1" || read("net/ipv4/conf/all/arp_announce") != "2" || h.servers.Timeouts().TCP != time.Hour {
		t.Errorf("settings %v, timeouts %v", h.settings.Writes(), h.servers.Timeouts())
	}
	h.sync(h.open(mode.IPVS{}), sp)
	if read("net/ipv4/vs/conntrack") != "1" || read("net/ipv4/conf/all/arp_announce") != "0" {
		t.Errorf("settings %v", h.settings.Writes())
	}
	if _, err := h.cleanup(false); err != nil {
		t.Error(err)
	}
	for name := range wantedSettings(true) {
		if read(name) != "0" {
			t.Errorf("%s is %s after the clean-up", name, read(name))
		}
	}
	h.settings.Refuse("net/ipv4/vs/conntrack", unix.EROFS)
	err := proxytest.Sync(t.Context(), h.open(mode.IPVS{}), stateOf(sp))
	if err == nil || !strings.Contains(err.Error(), "set /proc/sys/net/ipv4/vs/conntrack to 1") {
		t.Errorf("error %v", err)
	}
}

// TestProbe names what is missing.
func TestProbe(t *testing.T) {
	k := ipvstest.NewFake("rr")
	for name, want := range map[string]string{
		"rr": "",
		"mh": "the kernel has no IPVS scheduler mh: load module ip_vs_mh, or choose another --ipvs-scheduler",
	} {
		can, err := probe(t.Context(), k, name, proxy.Families[:])
		if want == "" && (err != nil || len(can) != 2) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: families %v, error %v; want %q", name, can, err, want)
		}
	}
	if all, _ := k.Servers(t.Context()); len(all) != 0 {
		t.Errorf("the probe left %v", all)
	}
	want := "the kernel has no IPVS (CONFIG_IP_VS): load module ip_vs, or choose another --proxy-mode"
	if err := explain(ipvs.ErrMissing); err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
