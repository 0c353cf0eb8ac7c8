package lab_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a host of the test lab with one address of each family.
type place struct {
	host  *lab.Host
	addrs [2]netip.Addr
}

// places builds one host of each kind.
func places(t *testing.T, l *lab.Lab) map[string]place {
	t.Helper()
	addr := netip.MustParseAddr
	all := map[string]place{
		"node":    {l.Node(), [2]netip.Addr{addr("192.168.0.2"), addr("2001:db8::1")}},
		"outside": {l.Outside(), [2]netip.Addr{addr("203.0.113.2"), addr("2600:5200::1")}},
		"pod":     {nil, [2]netip.Addr{addr("10.0.0.2"), addr("fd00:10::2")}},
		"pod2":    {nil, [2]netip.Addr{addr("10.0.0.3"), addr("fd00:10::3")}},
		"remote":  {nil, [2]netip.Addr{addr("10.0.1.2"), addr("fd00:10:1::2")}},
	}
	for name, p := range all {
		var err error
		switch name {
		case "pod", "pod2":
			p.host, err = l.AddPod(name, p.addrs[:]...)
		case "remote":
			p.host, err = l.AddRemotePod("node-b", p.addrs[:]...)
		}
		if err != nil {
			t.Fatal(err)
		}
		all[name] = p
	}
	return all
}

func probe(t *testing.T, h *lab.Host, f traffic.Flow) traffic.Seen {
	t.Helper()
	seen, err := h.Probe(t.Context(), []traffic.Flow{f})
	if err != nil {
		t.Fatal(err)
	}
	return seen[0]
}

func TestEveryHostReachesEveryOther(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	all := places(t, l)
	for to, server := range all {
		for _, f := range proxy.Families {
			for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP} {
				at := netip.AddrPortFrom(server.addrs[f], 8080)
				ln, err := server.host.Listen(p, at)
				if err != nil {
					t.Fatal(err)
				}
				for from, client := range all {
					flow := traffic.Flow{Protocol: p, Src: client.addrs[f], Dst: at, Patience: 3 * time.Second}
					got := probe(t, client.host, flow)
					want := traffic.Seen{Fate: traffic.Answered, Answer: traffic.Answer{By: at, Client: client.addrs[f]}}
					if got != want {
						t.Errorf("%v/%v from %s to %s: got %v, want %v", f, p, from, to, got, want)
					}
				}
				if err := ln.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func TestTheOutsideAnswersForAnyAddress(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	all := places(t, l)
	for _, text := range []string{"1.2.3.4:80", "172.30.0.1:80", "[2001:db8:ff::4]:80", "[fd00:172:30::41]:80"} {
		at := netip.MustParseAddrPort(text)
		for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP} {
			ln, err := l.Outside().Listen(p, at)
			if err != nil {
				t.Fatal(err)
			}
			for from, client := range all {
				src := client.addrs[proxy.FamilyOf(at.Addr())]
				got := probe(t, client.host, traffic.Flow{Protocol: p, Src: src, Dst: at, Patience: 3 * time.Second})
				if want := (traffic.Seen{Fate: traffic.Answered, Answer: traffic.Answer{By: at, Client: src}}); got != want {
					t.Errorf("%v from %s to %s: got %v, want %v", p, from, text, got, want)
				}
			}
			if err := ln.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestFates(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	all := places(t, l)
	patience := 300 * time.Millisecond
	for _, f := range proxy.Families {
		pod, node := all["pod"], netip.AddrPortFrom(all["node"].addrs[f], 9)
		flow := traffic.Flow{Protocol: proxy.TCP, Src: pod.addrs[f], Dst: node, Patience: patience}
		if got := probe(t, pod.host, flow); got.Fate != traffic.Reset {
			t.Errorf("%v: TCP without a listener: got %v, want a reset", f, got)
		}
		flow.Protocol = proxy.UDP
		if got := probe(t, pod.host, flow); got.Fate != traffic.Refused {
			t.Errorf("%v: UDP without a listener: got %v, want a refusal", f, got)
		}
		// The node's kernel has no SCTP, or has it and nobody listens: in no
		// case is that a port-unreachable message.
		flow.Protocol = proxy.SCTP
		if got := probe(t, pod.host, flow); got.Fate == traffic.Answered || got.Fate == traffic.Refused {
			t.Errorf("%v: SCTP without a listener: got %v", f, got)
		}
	}
}

func TestAPodIsUsedAgain(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	first, second := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.9")
	a, err := l.AddPod("a", first)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.RemovePod(a); err != nil {
		t.Fatal(err)
	}
	b, err := l.AddPod("b", second)
	if err != nil {
		t.Fatal(err)
	}
	if a != b {
		t.Errorf("a new namespace was made for the second pod")
	}
	at := netip.AddrPortFrom(second, 80)
	ln, err := b.Listen(proxy.TCP, at)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	src := netip.MustParseAddr("203.0.113.2")
	got := probe(t, l.Outside(), traffic.Flow{Protocol: proxy.TCP, Src: src, Dst: at, Patience: 3 * time.Second})
	if want := (traffic.Seen{Fate: traffic.Answered, Answer: traffic.Answer{By: at, Client: src}}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestCgroup has the sockets of the node and its pods in a cgroup, and no others. A
// pod's namespace is another pod's only with the same address.
func TestCgroup(t *testing.T) {
	lab.Require(t)
	cgroups, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	defer cgroups.Close()
	own, err := cgroups.Add()
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.New(lab.Config{Cgroup: own})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	all := places(t, l)
	for name, p := range all {
		if in := p.host.Cgroup == own; in != (name == "node" || name == "pod" || name == "pod2") {
			t.Errorf("%s: in the cgroup: %t", name, in)
		}
	}
	pod := all["pod"]
	if err := l.RemovePod(pod.host); err != nil {
		t.Fatal(err)
	}
	other, err := l.AddPod("other", netip.MustParseAddr("10.0.0.9"))
	same, err2 := l.AddPod("same", pod.addrs[:]...)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if other == pod.host || same != pod.host {
		t.Errorf("the namespace was used again for another address: %t, for its own: %t", other == pod.host, same == pod.host)
	}
}

func TestAProcessStartsInsideItsHost(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	pod, err := l.AddPod("pod", netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := exec.CommandContext(t.Context(), "cat", "/proc/net/fib_trie")
	cmd.Stdout = &out
	if err := pod.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "10.0.0.2") {
		t.Errorf("the process does not see the pod's address:\n%s", out.String())
	}
}

func BenchmarkProbe(b *testing.B) {
	l := lab.ForTest(b, lab.Config{})
	pod, err := l.AddPod("pod", netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP} {
		b.Run(fmt.Sprint(p), func(b *testing.B) {
			at := netip.MustParseAddrPort("10.0.0.2:80")
			ln, err := pod.Listen(p, at)
			if err != nil {
				b.Fatal(err)
			}
			defer ln.Close()
			flows := make([]traffic.Flow, b.N)
			for i := range flows {
				flows[i] = traffic.Flow{Protocol: p, Src: netip.MustParseAddr("203.0.113.2"), Dst: at, Patience: 3 * time.Second}
			}
			if _, err := l.Outside().Probe(b.Context(), flows); err != nil {
				b.Fatal(err)
			}
		})
	}
}
