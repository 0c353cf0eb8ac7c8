package ipvs_test

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/ipvs"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestRenderedServers compares what is rendered with what ipvsadm saves of it, and
// what the kernel has with what it should have.
func TestRenderedServers(t *testing.T) {
	lab.Require(t)
	ipvstest.Require(t)
	n, err := traffic.New("node", &traffic.Ports{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	s := proxy.NewState()
	for i, balancing := range []proxy.Balancing{proxy.RoundRobin, proxy.SourceHash, proxy.Maglev, proxy.LeastConnections} {
		f := proxy.Families[i%2]
		at := func(host string) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr([...]string{"10.96.0.", "fd00:96::"}[f]+host), 80)
		}
		sp := &proxy.ServicePort{
			Key: proxy.PortKey{ServicePortName: proxy.ServicePortName{
				Namespace: "ns", Name: balancing.String(), Protocol: []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP, proxy.TCP}[i],
			}, Family: f},
			Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: at([]string{"1", "2", "3", "4"}[i])}},
			Cluster:   []proxy.Endpoint{{Addr: at("11")}, {Addr: at("12"), Weight: 3}}, UsableSomewhere: true,
			Affinity: time.Duration(i) * time.Minute, Balancing: balancing,
		}
		s.Rows[sp.Key] = sp
	}
	render := func(diff bool) (string, int) {
		t.Helper()
		var out strings.Builder
		r := &mode.Rendering{Settings: mode.Settings{MasqueradeBit: 14}, Want: s, Diff: diff, Out: &out}
		if err := n.Do(func() error { return ipvs.Render(t.Context(), r) }); err != nil {
			t.Fatal(err)
		}
		return out.String(), r.Lines
	}
	ipvsadm := func(args ...string) []string {
		t.Helper()
		var out []byte
		if err := n.Do(func() (err error) { out, err = exec.Command("ipvsadm", args...).CombinedOutput(); return err }); err != nil {
			t.Fatalf("ipvsadm %q: %v\n%s", args, err, out)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	err = n.Do(func() error {
		d, err := ipvs.Open(t.Context(), mode.Settings{MasqueradeBit: 14})
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = d.Close() })
		return proxytest.Sync(t.Context(), d, s)
	})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := render(false)
	servers := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return !strings.HasPrefix(l, "-") })
	saved := ipvsadm("--save", "--numeric")
	slices.Sort(servers)
	slices.Sort(saved)
	if !slices.Equal(servers, saved) {
		t.Errorf("ipvsadm saves\n%s\nwant\n%s", strings.Join(saved, "\n"), strings.Join(servers, "\n"))
	}
	if out, lines := render(true); lines != 0 {
		t.Errorf("a kernel that is right:\n%s", out)
	}
	ipvsadm("--delete-server", "--tcp-service", "10.96.0.1:80", "--real-server", "10.96.0.12:80")
	if out, lines := render(true); lines != 1 || !strings.Contains(out, "\n+ -a -t 10.96.0.1:80 -r 10.96.0.12:80 -m -w 3\n") {
		t.Errorf("without a real server:\n%s", out)
	}
}
