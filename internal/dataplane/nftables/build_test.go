package nftables

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// openKernel opens a dataplane on the kernel, through a counter.
func openKernel(t testing.TB) (*Dataplane, *counter) {
	t.Helper()
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{Interface: conn}
	d := Alone.New(c, mode.Settings{MasqueradeBit: 14})
	t.Cleanup(func() { d.Close() })
	return d, c
}

// counter counts what passes to the kernel.
type counter struct {
	nft.Interface
	commits [][]nft.Op
	lists   int
}

func (c *counter) Commit(ctx context.Context, b *nft.Batch) error {
	err := c.Interface.Commit(ctx, b)
	if err == nil && len(b.Ops) > 0 {
		c.commits = append(c.commits, slices.Clone(b.Ops))
	}
	return err
}

func (c *counter) Elements(ctx context.Context, s *nft.Set, f func(nft.Element)) error {
	c.lists++
	return c.Interface.Elements(ctx, s, f)
}

func (c *counter) reset() (ops int) {
	for _, b := range c.commits {
		ops += len(b)
	}
	c.commits, c.lists = nil, 0
	return ops
}

func serviceKey(i int, f proxy.Family) proxy.PortKey {
	return proxy.PortKey{ServicePortName: proxy.ServicePortName{
		Namespace: "default", Name: fmt.Sprintf("svc-%d", i), Port: "http", Protocol: proxy.TCP,
	}, Family: f}
}

// plainRow returns ClusterIP Service number i with n endpoints; shift changes the first
// endpoint's address.
func plainRow(i, n, shift int) *proxy.ServicePort {
	sp := &proxy.ServicePort{
		Key:             serviceKey(i, proxy.IPv4),
		Frontends:       []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: addrPort(172<<24|16<<16, i, 80)}},
		UsableSomewhere: n > 0,
	}
	for e := range n {
		at := i*16 + e
		if e == 0 {
			at += shift
		}
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: addrPort(10<<24, at, 8080)})
	}
	return sp
}

func addrPort(base uint32, i int, port uint16) netip.AddrPort {
	v := base + uint32(i)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), port)
}

// plainState returns n ClusterIP Services with ten endpoints each.
func plainState(n int) *proxy.State {
	s := proxy.NewState()
	s.Node = testNode()
	for i := range n {
		sp := plainRow(i, 10, 0)
		s.Rows[sp.Key] = sp
	}
	return s
}

func testNode() *proxy.Node {
	return &proxy.Node{
		Name: "node",
		LocalPods: proxy.LocalTrafficDetector{
			Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/64")},
		},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("2001:db8::1/128")},
	}
}

// randomRow returns a row with random frontends, lists and policies. Rows with different
// numbers have different addresses.
func randomRow(r *rand.Rand, i int) *proxy.ServicePort {
	f := proxy.Families[i%2]
	at := func(net string, n int, port uint16) netip.AddrPort {
		if f == proxy.IPv4 {
			return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("%s.%d.%d", map[string]string{"vip": "172.30", "ext": "192.0", "pod": "10.1"}[net], n/200, n%200+1)), port)
		}
		return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("%s::%x", map[string]string{"vip": "fd00:172", "ext": "2001:db8:e", "pod": "fd00:10"}[net], n+1)), port)
	}
	sp := &proxy.ServicePort{
		Key:       serviceKey(i, f),
		Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: at("vip", i/4, uint16(80+i%4))}}, // a few ports share an address
		Internal:  proxy.Scope(r.IntN(2)),
		External:  proxy.Scope(r.IntN(2)),
		Balancing: proxy.Balancing(r.IntN(1 + int(proxy.Maglev))),
	}
	sp.Key.Protocol = []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP}[i%3]
	if r.IntN(2) == 0 {
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: at("ext", i, 80)})
		if r.IntN(2) == 0 {
			sp.AllowFrom = []netip.Prefix{netip.PrefixFrom(at("ext", 7, 0).Addr(), f.Bits()-8).Masked()}
		}
	}
	if r.IntN(2) == 0 {
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(f.Unspecified(), uint16(30000+i))})
	}
	if r.IntN(2) == 0 {
		sp.Affinity = time.Duration(1+r.IntN(3)) * time.Hour
	}
	count, spread := r.IntN(5), 8
	if r.IntN(30) == 0 { // many
		count, spread = 1000+r.IntN(4), 1200
		sp.Frontends = sp.Frontends[:1]
	} else {
		for n := range r.IntN(4) * r.IntN(4) { // sometimes many
			sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: at("ext", 1000+i*16+n, 80)})
		}
	}
	for e := range count {
		ep := proxy.Endpoint{Addr: at("pod", r.IntN(40)*spread+e, 8080), Local: r.IntN(2) == 0}
		ep.NodeUnknown = !ep.Local && r.IntN(2) == 0
		sp.Cluster = append(sp.Cluster, ep)
		if ep.Local {
			sp.Local = append(sp.Local, ep)
		}
	}
	sp.UsableSomewhere = len(sp.Cluster) > 0 || r.IntN(2) == 0
	return sp
}

// swapFrontends gives two rows of one family and protocol each other's frontends.
func swapFrontends(s *proxy.State, i, j int) {
	r := rand.New(rand.NewPCG(0, 0))
	a, b := s.Rows[randomRow(r, i).Key], s.Rows[randomRow(r, j).Key]
	a.Frontends, b.Frontends = b.Frontends, a.Frontends
}

// dump returns the content of the tables as sorted text, for comparison. Numbers that may
// differ between processes are replaced by what they refer to. Unused classes are left out.
func dump(t testing.TB, conn nft.Interface, d *Dataplane) string {
	t.Helper()
	return settled(t, func() string { return dumpOnce(t, conn, d) })
}

// settled lists until two listings are equal. The kernel resizes hash tables in the
// background; meanwhile a listing may repeat some elements and omit others.
func settled(t testing.TB, list func() string) string {
	t.Helper()
	last := list()
	for range 100 {
		now := list()
		if now == last {
			return now
		}
		last = now
	}
	t.Fatal("no two listings are the same")
	return ""
}

// wantIdle fails the test unless a Sync writes nothing. An element that its listing omits,
// as one of dump may, is added again; that is not a failure.
func wantIdle(t testing.TB, c *counter, d *Dataplane, s *proxy.State) {
	t.Helper()
	for range 100 {
		c.reset()
		proxytest.MustSync(t, d, s)
		if len(c.commits) == 0 {
			return
		}
		for _, op := range slices.Concat(c.commits...) {
			if op.Kind != nft.AddElement {
				t.Fatalf("a Sync of what is there had to %v", &op)
			}
		}
	}
	t.Error("every Sync of what is there adds elements")
}

func dumpOnce(t testing.TB, conn nft.Interface, d *Dataplane) string {
	t.Helper()
	var lines []string
	for _, tab := range d.tables {
		l, err := conn.List(context.Background(), tab.Table)
		if err != nil {
			t.Fatal(err)
		}
		if l == nil {
			continue
		}
		x := dumper{t: t, conn: conn, table: tab, chains: map[string]string{}, names: map[string]string{}, used: map[string]bool{}}
		lines = append(lines, x.elements()...)
		for name, rules := range l.Chains {
			if class := strings.ContainsAny(name, "0123456789") || strings.Contains(name, takenPrefix); !class || x.used["goto "+name] {
				lines = append(lines, fmt.Sprintf("%v chain %s %q", tab.Table, name, rules))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

type dumper struct {
	t      testing.TB
	conn   nft.Interface
	table  *table
	chains map[string]string // by class number
	names  map[string]string // by list number or id
	used   map[string]bool   // chains
}

func (x *dumper) each(s *nft.Set, f func(nft.Element)) {
	if err := x.conn.Elements(context.Background(), s, f); err != nil {
		x.t.Fatal(err)
	}
}

func (x *dumper) elements() (lines []string) {
	x.each(x.table.classSet, func(e nft.Element) {
		x.chains[e.Key] = fmt.Sprint(e.Verdict)
		if e.Verdict.Code == nft.Goto {
			x.chains[e.Key] = "goto " + e.Verdict.Chain
		}
	})
	for _, m := range []*frontendMaps{&x.table.addresses, &x.table.nodePorts} {
		x.each(m.lists, func(e nft.Element) {
			if n := x.names[e.Data]; n == "" || n > fmt.Sprintf("list of %x", e.Key) {
				base, _ := parseHostWord(e.Data)
				for i, half := range []uint32{0, halfBlock} {
					x.names[string(hostWord(base+half))] = fmt.Sprintf("list of %x", e.Key) + []string{"", " local"}[i]
				}
			}
		})
		x.each(m.endpoints, func(e nft.Element) {
			if id := e.Key[len(e.Key)-4:]; isID(id) {
				x.names[id] = fmt.Sprintf("id of %x", e.Data)
			}
		})
	}
	for _, s := range x.table.sets() {
		if s.Dynamic || s == x.table.classSet {
			continue
		}
		x.each(s, func(e nft.Element) {
			lines = append(lines, fmt.Sprintf("%v %s %s %s %s", x.table.Table, s.Name, x.key(s, e.Key), x.data(s, e.Data), e.Verdict.Chain))
		})
	}
	return lines
}

func (x *dumper) key(s *nft.Set, key string) string {
	switch {
	case len(key) > 4 && x.names[key[len(key)-4:]] != "":
		return fmt.Sprintf("%x ", key[:len(key)-4]) + x.names[key[len(key)-4:]]
	default:
		return fmt.Sprintf("%x", key)
	}
}

func (x *dumper) data(s *nft.Set, data string) string {
	switch s {
	case x.table.addresses.dispatch, x.table.nodePorts.dispatch, x.table.addresses.locals, x.table.nodePorts.locals,
		x.table.addresses.external, x.table.nodePorts.external:
		class, more := classIn(data)
		to := x.chains[class]
		x.used[to] = true
		return cmp.Or(to, fmt.Sprintf("%x", data)) + more
	case x.table.addresses.lists, x.table.nodePorts.lists, x.table.addresses.ids, x.table.nodePorts.ids:
		return x.names[data]
	default:
		return fmt.Sprintf("%x", data)
	}
}

// classIn returns the number of a class in a map's value, and the other bits.
func classIn(data string) (class, more string) {
	n, _ := parseHostWord(data)
	if n >= firstClass && n&clusterIPFlag != 0 {
		return string(hostWord(n &^ clusterIPFlag)), " of a ClusterIP"
	}
	return data, ""
}

// isID reports whether a word is the id of an endpoint.
func isID(w string) bool {
	n := binary.NativeEndian.Uint32([]byte(w))
	return scratchBit <= n && n < firstClass
}
