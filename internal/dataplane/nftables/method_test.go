package nftables

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// balanced sets the balancing method of a row and returns it.
func balanced(sp *proxy.ServicePort, b proxy.Balancing) *proxy.ServicePort {
	sp.Balancing = b
	return sp
}

// TestCostOfBalancingMethods checks that all methods take the same operations: two elements
// if an endpoint is replaced, none if its weight changes.
func TestCostOfBalancingMethods(t *testing.T) {
	for b := proxy.BalanceDefault; b <= proxy.Maglev; b++ {
		t.Run(b.String(), func(t *testing.T) {
			fake := nfttest.NewFake()
			d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
			s := plainState(0)
			for i := range 1000 {
				sp := balanced(plainRow(i, 10, 0), b)
				s.Rows[sp.Key] = sp
			}
			proxytest.MustSync(t, d, s)
			heavy := balanced(plainRow(50, 10, 0), b)
			heavy.Cluster[0].Weight = 7
			for _, tt := range []struct {
				what             string
				old, cur         *proxy.ServicePort
				elements, others int // most of them
			}{
				{"another weight", balanced(plainRow(50, 10, 0), b), heavy, 0, 0},
				{"another endpoint", heavy, balanced(plainRow(50, 10, 1<<20), b), 2, 0},
				{"an endpoint less", balanced(plainRow(50, 10, 1<<20), b), balanced(plainRow(50, 9, 1<<20), b), 4, 3},
				{"another method", balanced(plainRow(50, 9, 1<<20), b), balanced(plainRow(50, 9, 1<<20), (b+1)%proxy.Maglev), 3, 3},
			} {
				fake.Reset()
				proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: tt.old, New: tt.cur}}})
				if c := fake.Reset(); c.Elements() > tt.elements || c.Others() > tt.others || c.Lists != 0 {
					t.Errorf("%s: %v, %d lists", tt.what, c.Ops, c.Lists)
				}
			}
		})
	}
}

// TestBalancingMethodsSurviveARestart checks that a new process finds nothing to write, so
// that round robin continues where it was. It makes several attempts, because a listing of
// the kernel may be incomplete.
func TestBalancingMethodsSurviveARestart(t *testing.T) {
	lab.Namespace(t)
	s := randomState(5, 60)
	for range 10 {
		d, c := openKernel(t)
		proxytest.MustSync(t, d, s)
		if c.reset() == 0 {
			return
		}
		dump(t, c, d)
	}
	t.Error("every restart writes something")
}

// TestBalancingMethodsAreReadable checks that the nft program can read what it lists.
func TestBalancingMethodsAreReadable(t *testing.T) {
	lab.Namespace(t)
	d, _ := openKernel(t)
	s := plainState(0)
	for _, f := range proxy.Families {
		for b := proxy.BalanceDefault; b <= proxy.Maglev; b++ {
			for _, affinity := range []time.Duration{0, time.Hour} {
				sp := balanced(plainRow(len(s.Rows), 3, 0), b)
				sp.Affinity = affinity
				if f == proxy.IPv6 {
					sp = probeRow(f, affinity)
					sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: addrPort6(2)})
					sp.Balancing, sp.Key.Name = b, fmt.Sprint(b, affinity)
					for i := range sp.Frontends {
						sp.Frontends[i].Addr = addrPort6(uint16(10*len(s.Rows) + i + 1))
					}
				}
				s.Rows[sp.Key] = sp
			}
		}
	}
	proxytest.MustSync(t, d, s)
	listable(t)
	out, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"numgen inc mod 3", "jhash ip saddr mod 3", "jhash ip6 saddr mod 2", "chain lb-3-source-hash {"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in what nft lists", want)
		}
	}
	// The program cannot read everything that it lists, but it can read the names of classes.
	var chains strings.Builder
	for line := range strings.Lines(string(out)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "chain ")
		if ok && strings.ContainsAny(name, "0123456789") {
			fmt.Fprintf(&chains, "add chain ip read-back %s\n", strings.TrimSuffix(strings.TrimSpace(name), " {"))
		}
	}
	file := filepath.Join(t.TempDir(), "chains.nft")
	if err := os.WriteFile(file, []byte("add table ip read-back\n"+chains.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "-f", file).CombinedOutput(); err != nil {
		t.Errorf("nft does not read the names of our chains: %v: %.2000s", err, out)
	}
}

func addrPort6(n uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(n), 14: byte(n >> 8)}), 80)
}
