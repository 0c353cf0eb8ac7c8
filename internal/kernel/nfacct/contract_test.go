package nfacct

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bench is counters, and a hand that writes rules and sends packets.
type bench struct {
	Interface
	rule   func(name string) // names a counter for the packets below
	unrule func(name string) // takes the rule away
	send   func(bytes int)   // sends one packet of so many bytes
}

// TestContract holds the kernel and the Fake to the same behaviour, the kernel
// with rules of both kinds and families.
func TestContract(t *testing.T) {
	implementations := map[string]func(*testing.T) bench{"fake": fakeBench}
	for _, program := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		implementations[program] = func(t *testing.T) bench { return kernelBench(t, program) }
	}
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			for _, c := range contract {
				t.Run(c.name, func(t *testing.T) { c.check(t, open(t)) })
			}
		})
	}
}

func fakeBench(*testing.T) bench {
	k := NewFake()
	var ruled []string
	return bench{
		Interface: k,
		rule:      func(name string) { k.Refer(name, 1); ruled = append(ruled, name) },
		unrule:    func(name string) { k.Refer(name, -1) },
		send: func(bytes int) {
			for _, name := range ruled {
				k.Add(name, Count{1, uint64(bytes)})
			}
		},
	}
}

// openInNamespace opens the kernel in a network namespace of the test's own,
// which ends with the test's thread.
func openInNamespace(t *testing.T) *Conn {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v (kernel tests need root)", err)
	}
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Counter("probe"); errors.Is(err, ErrUnsupported) {
		if symbols, _ := os.ReadFile("/proc/kallsyms"); bytes.Contains(symbols, []byte("nfnl_acct")) {
			t.Fatalf("the kernel has packet accounting, and yet: %v", err)
		}
		t.Skipf("%v (CONFIG_NETFILTER_NETLINK_ACCT)", err)
	}
	return c
}

func kernelBench(t *testing.T, program string) bench {
	t.Helper()
	c := openInNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	to, headers := netip.MustParseAddrPort("127.0.0.1:9"), 20+8
	if strings.HasPrefix(program, "ip6") {
		to, headers = netip.MustParseAddrPort("[::1]:9"), 40+8
	}
	change := func(option string) func(string) {
		return func(name string) {
			t.Helper()
			args := "-w 5 " + option + " OUTPUT -p udp --dport 9 -m nfacct --nfacct-name " + name
			out, err := exec.CommandContext(t.Context(), program, strings.Fields(args)...).CombinedOutput()
			if err != nil {
				t.Fatalf("run %s %s: %v: %s (make deps installs it)", program, args, err, out)
			}
		}
	}
	return bench{
		Interface: c,
		rule:      change("-A"),
		unrule:    change("-D"),
		send: func(bytes int) {
			t.Helper()
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(make([]byte, bytes-headers)); err != nil {
				t.Fatal(err)
			}
		},
	}
}

type contractCase struct {
	name  string
	check func(*testing.T, bench)
}

const longest = "a-counter-with-31-bytes-to-name"

var contract = []contractCase{
	{"none at first", func(t *testing.T, b bench) {
		if _, err := b.Counter("one"); !errors.Is(err, ErrNotFound) {
			t.Errorf("error %v; want %v", err, ErrNotFound)
		}
		wantDelete(t, b, "one", ErrNotFound)
	}},
	{"a new counter is zero", func(t *testing.T, b bench) {
		ensure(t, b, "one")
		wantCount(t, b, "one", Count{})
		wantDelete(t, b, "one", nil)
		wantDelete(t, b, "one", ErrNotFound)
	}},
	{"counts packets that a rule matches", func(t *testing.T, b bench) {
		ensure(t, b, "one")
		ensure(t, b, "two")
		b.rule("one")
		b.send(100)
		b.send(61)
		wantCount(t, b, "one", Count{2, 161})
		wantCount(t, b, "one", Count{2, 161}) // reading changes nothing
		wantCount(t, b, "two", Count{})
	}},
	{"making it again changes nothing", func(t *testing.T, b bench) {
		ensure(t, b, "one")
		b.rule("one")
		b.send(100)
		ensure(t, b, "one")
		wantCount(t, b, "one", Count{1, 100})
	}},
	{"one that a rule names stays", func(t *testing.T, b bench) {
		ensure(t, b, "one")
		b.rule("one")
		b.send(100)
		wantDelete(t, b, "one", ErrBusy)
		wantCount(t, b, "one", Count{1, 100})
		b.unrule("one")
		deleteWhenFree(t, b, "one")
	}},
	{"the others stay", func(t *testing.T, b bench) {
		ensure(t, b, "one")
		ensure(t, b, "two")
		wantDelete(t, b, "one", nil)
		wantCount(t, b, "two", Count{})
	}},
	{"names", func(t *testing.T, b bench) {
		ensure(t, b, longest)
		ensure(t, b, longest[:30])
		wantDelete(t, b, longest, nil)
		wantCount(t, b, longest[:30], Count{})
		for _, bad := range []string{"", longest + "s", "a\x00b"} {
			_, err := b.Counter(bad)
			for _, err := range []error{err, b.Ensure(bad), b.Delete(bad)} {
				if err == nil || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNotFound) {
					t.Errorf("name %q: error %v; want one about the name", bad, err)
				}
			}
		}
		wantCount(t, b, longest[:30], Count{}) // deleting "" does not delete all
	}},
}

func ensure(t *testing.T, k Interface, name string) {
	t.Helper()
	if err := k.Ensure(name); err != nil {
		t.Fatal(err)
	}
}

func wantCount(t *testing.T, k Interface, name string, want Count) {
	t.Helper()
	if got, err := k.Counter(name); got != want || err != nil {
		t.Errorf("counter %s is %+v, error %v; want %+v", name, got, err, want)
	}
}

func wantDelete(t *testing.T, k Interface, name string, want error) {
	t.Helper()
	if err := k.Delete(name); !errors.Is(err, want) {
		t.Errorf("delete %s: error %v; want %v", name, err, want)
	}
}

// deleteWhenFree gives the kernel time to let go of a counter.
func deleteWhenFree(t *testing.T, k Interface, name string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); ; {
		err := k.Delete(name)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}
