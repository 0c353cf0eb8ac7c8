package iptables

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl/sysctltest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// saved returns the IPv4 tables, a line for each chain and rule.
func saved(t *testing.T, d *Dataplane) []string {
	t.Helper()
	tables, err := d.families[0].programs.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, table := range tables {
		for _, c := range table.Chains {
			out = append(out, table.Name+" "+c.Name)
			for _, r := range c.Rules {
				out = append(out, table.Name+" "+c.Name+" "+r)
			}
		}
	}
	return out
}

// wantSaved expects lines of the IPv4 tables, in any order.
func wantSaved(t *testing.T, d *Dataplane, want []string) {
	t.Helper()
	got := saved(t, d)
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("before and after mismatch (-want +got):\n%s", diff)
	}
}

func restore(t *testing.T, d *Dataplane, lines ...string) {
	t.Helper()
	if err := d.families[0].programs.Restore(t.Context(), []byte(strings.Join(lines, "\n")+"\n")); err != nil {
		t.Fatal(err)
	}
}

// runHost runs a program as an administrator would, and returns what it printed.
func runHost(t *testing.T, program string, args ...string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("run %s %q: %v: %s", program, args, err, output)
	}
	return string(output)
}

// everyRow returns a row that has every kind of rule.
func everyRow() *proxy.ServicePort {
	sp := plainRow(1, 3, 0)
	sp.Cluster[0].Local = true
	sp.Local = sp.Cluster[:1]
	sp.External, sp.Affinity = proxy.ScopeLocal, time.Hour
	sp.AllowFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: at(198, 1, 80)},
		proxy.Frontend{Kind: proxy.ExternalIP, Addr: at(198, 2, 80)})
	return sp
}

func everyState() *proxy.State {
	s := plainState(5)
	s.Node.LocalhostNodePorts = true
	s.Rows[everyRow().Key] = everyRow()
	for i, empty := range []*proxy.ServicePort{plainRow(7, 0, 0), everyRow()} {
		empty.Key.Name, empty.Cluster, empty.Local, empty.UsableSomewhere = "empty", nil, nil, i > 0
		empty.Key.Port = string(rune('a' + i))
		for j := range empty.Frontends {
			empty.Frontends[j].Addr = netip.AddrPortFrom(empty.Frontends[j].Addr.Addr(), uint16(2000+i))
		}
		s.Rows[empty.Key] = empty
	}
	s.HealthChecks = map[proxy.HealthCheckKey]*proxy.HealthCheck{
		{Namespace: "a", Name: "b"}: {Key: proxy.HealthCheckKey{Namespace: "a", Name: "b"}, Port: 30000},
	}
	return s
}

// TestSyncRepairs damages the tables. Sync must repair them and leave rules of other programs
// alone, and a second Sync must have nothing to do.
func TestSyncRepairs(t *testing.T) {
	foreign := []string{
		"*nat", ":THEIRS - [0:0]", "-A THEIRS -d 192.0.2.7/32 -j KUBE-MARK-MASQ", "-A PREROUTING -j THEIRS", "COMMIT",
		"*filter", ":KUBE-FIREWALL - [0:0]", "-A KUBE-FIREWALL -d 192.0.2.8/32 -j DROP", "-A INPUT -j KUBE-FIREWALL", "COMMIT",
	}
	damage := map[string][]string{
		"flushed":       {"*nat", "-F", "COMMIT", "*filter", "-F KUBE-SERVICES", "COMMIT"},
		"jump gone":     {"*nat", "-F PREROUTING", "-A PREROUTING -j THEIRS", "COMMIT"},
		"foreign rules": {"*nat", "-A KUBE-SERVICES -d 192.0.2.1/32 -j ACCEPT", "COMMIT"},
		"stale chains": {
			"*nat", ":KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]", ":KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]",
			"-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA", "-A KUBE-SERVICES -d 192.0.2.9/32 -j KUBE-SVC-AAAAAAAAAAAAAAAA", "COMMIT",
		},
	}
	for name, lines := range damage {
		t.Run(name, func(t *testing.T) {
			variants(t, func(t *testing.T, d *Dataplane) {
				proxytest.MustSync(t, d, everyState())
				restore(t, d, foreign...)
				want := saved(t, d)
				restore(t, d, lines...)
				if name == "flushed" {
					restore(t, d, "*nat", "-A THEIRS -d 192.0.2.7/32 -j KUBE-MARK-MASQ", "-A PREROUTING -j THEIRS", "COMMIT")
				}
				proxytest.MustSync(t, d, everyState())
				wantSaved(t, d, want)
				wantNothingToWrite(t, d, everyState())
			})
		})
	}
}

// TestForeignLineBreak has a rule of another program whose comment has a line break, which
// iptables-save prints verbatim.
func TestForeignLineBreak(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		runHost(t, ipt.Name(ipt.IPv4, d.variant), "-A", "INPUT", "-m", "comment", "--comment", "two\nlines", "-j", "ACCEPT")
		proxytest.MustSync(t, d, plainState(2))
		if !slices.Contains(saved(t, d), `filter INPUT -m comment --comment "two lines" -j ACCEPT`) {
			t.Error("the rule is missing, or was not parsed")
		}
	})
}

// TestUndeletableRules has rules of another program that cannot be deleted by their text.
// Those in our chains are removed by rewriting the chain; jumps to our chains stay.
func TestUndeletableRules(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		proxytest.MustSync(t, d, everyState())
		want := append(saved(t, d), `filter INPUT -m comment --comment "two lines" -j KUBE-SERVICES`)
		for _, at := range []chainRef{dispatch, dispatchPort, emptyExternal, {filter, "INPUT"}} {
			target := "ACCEPT"
			if at.builtIn() {
				target = kubeServices
			}
			runHost(t, ipt.Name(ipt.IPv4, d.variant), "-t", at.table, "-I", at.chain, "-m", "comment", "--comment", "two\nlines", "-j", target)
		}
		for range 2 {
			proxytest.MustSync(t, d, everyState())
			wantSaved(t, d, want)
		}
	})
}

// TestRefusedRow has a row that the programs refuse. Other rows must be written.
func TestRefusedRow(t *testing.T) {
	bad := plainRow(9, 2, 0)
	bad.Affinity = 1 << 62 // more seconds than the match allows
	variants(t, func(t *testing.T, d *Dataplane) {
		s := plainState(3)
		s.Rows[bad.Key] = bad
		for range 2 {
			var refused *proxytest.RefusedError
			if err := proxytest.Sync(t.Context(), d, s); !errors.As(err, &refused) || len(refused.Rows) != 1 || refused.Rows[bad.Key] == nil {
				t.Fatalf("Sync: %v; want the row %v refused", err, bad.Key)
			}
		}
		old, good := plainRow(9, 2, 0), plainRow(10, 2, 0)
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{New: old}}})
		before := saved(t, d)
		var refused *proxytest.RefusedError
		err := proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: bad}, {New: good}}})
		if !errors.As(err, &refused) || len(refused.Rows) != 1 || refused.Rows[bad.Key] == nil {
			t.Fatalf("Apply: %v; want the row %v refused", err, bad.Key)
		}
		after := saved(t, d)
		for _, l := range before {
			if !slices.Contains(after, l) {
				t.Errorf("%q is gone", l)
			}
		}
		if !slices.ContainsFunc(after, func(l string) bool { return strings.Contains(l, "svc-10:http") }) {
			t.Error("the good row is missing")
		}
		for _, f := range d.families {
			have, err := f.kernelUses(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(f.uses, have, cmp.AllowUnexported(chainRef{})); diff != "" || !f.synced {
				t.Errorf("%v: synced %t, uses after a refusal (-counted +the kernel's):\n%s", f.Family, f.synced, diff)
			}
		}
		delete(s.Rows, bad.Key)
		s.Rows[old.Key], s.Rows[good.Key] = old, good
		wantNothingToWrite(t, d, s) // what was committed before the refusal was reverted
	})
}

// TestCleanup checks that Cleanup removes all rules of a Sync.
func TestCleanup(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		restore(t, d, "*mangle", "COMMIT", "*nat", ":THEIRS - [0:0]", "-A PREROUTING -j THEIRS", "COMMIT", "*filter", "-A INPUT -j ACCEPT", "COMMIT")
		want := saved(t, d)
		proxytest.MustSync(t, d, everyState())
		if _, err := Cleanup(t.Context(), mode.Settings{}, nil); err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(saved(t, d), func(l string) bool { return strings.HasPrefix(l, "mangle ") })
		want = slices.DeleteFunc(want, func(l string) bool { return strings.HasPrefix(l, "mangle ") })
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("before and after mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestOddNames has names that an API server rejects, but that a folder of manifests may have.
func TestOddNames(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		s := plainState(0)
		for i, name := range []string{`a"b`, `it's`, `back\slash`, "line\nCOMMIT", "\x00", "gr\u00fcn", strings.Repeat("long", 100), "--jump", "$(id)"} {
			sp := plainRow(i, 2, 0)
			sp.Key.Name = name
			s.Rows[sp.Key] = sp
		}
		for range 2 {
			proxytest.MustSync(t, d, s)
		}
		wantNothingToWrite(t, d, s)
	})
}

// TestPrintedAddresses has addresses that the programs format differently from Go. A second
// Sync must find nothing to write.
func TestPrintedAddresses(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		s := plainState(0)
		s.CIDRs = append(s.CIDRs, netip.MustParsePrefix("::102:0/112"))
		s.Node.LocalPods.Sources = append(s.Node.LocalPods.Sources, netip.MustParsePrefix("::a00:0/104"))
		for i, address := range []string{"::102:305", "::102:0", "::305", "::1:0:0:1", "1::102:305", "::ffff:0:102:305", "::"} {
			sp := plainRow(i, 0, 0)
			sp.Key.Family, sp.UsableSomewhere = proxy.IPv6, true
			a := netip.MustParseAddr(address)
			sp.Frontends = []proxy.Frontend{{Kind: proxy.ExternalIP, Addr: netip.AddrPortFrom(a, uint16(80+i))}}
			sp.Cluster = []proxy.Endpoint{{Addr: netip.AddrPortFrom(a, 8080), Local: i%2 == 0}}
			s.Rows[sp.Key] = sp
		}
		proxytest.MustSync(t, d, s)
		wantNothingToWrite(t, d, s)
	})
}

// TestTwoProtocols has two ports of the same name, TCP and UDP, as a folder of manifests may.
// Other ports of their ClusterIP are refused until the last of them is removed.
func TestTwoProtocols(t *testing.T) {
	tcp, udp := plainRow(1, 2, 0), plainRow(1, 2, 0)
	udp.Key.Protocol = proxy.UDP
	both := plainState(0)
	both.Rows[tcp.Key], both.Rows[udp.Key] = tcp, udp
	d, fake := faked()
	remove := func(sp *proxy.ServicePort) error {
		return proxytest.Apply(t.Context(), d, &proxy.Delta{Removes: []*proxy.ServicePort{sp}})
	}
	for i, tt := range []struct {
		step func() error
		want int
	}{
		{func() error { return proxytest.Sync(t.Context(), d, both) }, 2},
		{func() error { return remove(udp) }, 1},
		{func() error {
			return proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{New: udp}}})
		}, 2},
		{func() error { return remove(tcp) }, 1},
		{func() error { return remove(udp) }, 0},
	} {
		if err := tt.step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		tables, err := fake.Save(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if rules := indexChains(tables)[clusterIPs].Rules; len(rules) != tt.want {
			t.Errorf("after step %d rules %q refuse other ports, want %d", i, rules, tt.want)
		}
	}
}

// TestChainNames checks that chains have the names that kube-proxy gives them.
func TestChainNames(t *testing.T) {
	k := proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "default", Name: "kubernetes", Port: "https", Protocol: proxy.TCP}}
	if got, want := clusterChain+hash(k, ""), "KUBE-SVC-NPX46M4PTMTKRN6Y"; got != want {
		t.Errorf("chain of %v is %s; want %s", k, got, want)
	}
}

// TestProbabilities checks that probabilities are as exact as 31 bits allow.
func TestProbabilities(t *testing.T) {
	tests := map[int]string{2: "0.50000000000", 3: "0.33333333349", 10: "0.10000000009", 1000: "0.00100000016"}
	for n, want := range tests {
		if got := probability(n); got != want {
			t.Errorf("one in %d is %s; want %s", n, got, want)
		}
	}
}

// TestLoopbackCannotBeOpened checks that Sync succeeds on a host whose settings cannot be
// changed.
func TestLoopbackCannotBeOpened(t *testing.T) {
	d, _ := faked()
	k := sysctltest.NewFake(map[string]string{"net/ipv4/conf/all/route_localnet": "0"})
	k.Refuse("net/ipv4/conf/all/route_localnet", errors.New("read-only file system"))
	d.localnet = localnet.New(k, nil)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	for range 2 {
		if err := proxytest.Sync(klog.NewContext(t.Context(), logger), d, everyState()); err != nil {
			t.Error(err)
		}
	}
	log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if n := strings.Count(log, "NodePorts stay closed on loopback addresses"); n != 1 {
		t.Errorf("logged %d times that NodePorts on loopback addresses stay closed, want 1", n)
	}
}

// TestInvalidPackets checks that the rule that drops invalid packets follows the setting that
// makes it unnecessary, which the daemon may change after Open.
func TestInvalidPackets(t *testing.T) {
	const setting = "net/netfilter/nf_conntrack_tcp_be_liberal"
	d, _ := faked()
	k := sysctltest.NewFake(map[string]string{localnet.Name: "0", setting: "0"})
	d.sysctls = k
	for _, value := range []string{"1", "0", "1"} {
		if err := k.Write(setting, value); err != nil {
			t.Fatal(err)
		}
		proxytest.MustSync(t, d, plainState(1))
		dropped := slices.ContainsFunc(saved(t, d), func(l string) bool { return strings.Contains(l, "--ctstate INVALID") })
		if dropped != (value == "0") {
			t.Errorf("with %s=%s invalid packets are dropped: %t", setting, value, dropped)
		}
	}
}
