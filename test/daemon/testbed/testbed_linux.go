package testbed

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/version"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/proxy"
)

// Addresses of Services.
var (
	ClusterIP = netip.MustParseAddrPort("172.30.0.10:80")
	SecondIP  = netip.MustParseAddrPort("172.30.0.20:80")
	ClusterV6 = netip.MustParseAddrPort("[fd00:172:30::10]:80")
)

// Addresses of pods.
var (
	PodA     = netip.MustParseAddr("10.0.0.11")
	PodB     = netip.MustParseAddr("10.0.0.12")
	ClientIP = netip.MustParseAddr("10.0.0.2")
	PodV6    = netip.MustParseAddr("fd00:10::11") // pod A
	ClientV6 = netip.MustParseAddr("fd00:10::2")
)

// Legacy is mode iptables on a host whose rules are written by iptables-legacy.
const Legacy = "iptables-legacy"

// Modes are all modes of the daemon.
var Modes = []string{"nftables", "iptables", "ipvs", "userspace", "ebpf"}

// Testbed is a node with two pods that answer at port 8080, a client pod and a folder of manifests.
// Its methods fail its test.
type Testbed struct {
	T      *testing.T
	Lab    *lab.Lab
	Client *lab.Host
	Pods   map[netip.Addr]*lab.Host // by address, with the client
	Dir    string                   // of the manifests
	Flags  []string                 // of every daemon, in addition to those of a test
	Socket string                   // of the status API; short, because the path of a Unix socket is limited to 108 bytes

	Patience time.Duration // timeout of the connections of a load; 0 means long enough for a retry
}

// New creates a testbed, without a daemon. It is removed when the test ends.
func New(t *testing.T) *Testbed {
	t.Helper()
	return newWith(t, lab.Config{})
}

// NewFor creates a testbed whose daemons run in a mode, or in [Legacy]. In mode ebpf the sockets of
// all pods are translated.
func NewFor(t *testing.T, mode string) *Testbed {
	t.Helper()
	switch mode {
	case "ipvs":
		ipvstest.Require(t)
	case "ebpf":
		flags := EBPFFlags(t)
		b := newWith(t, lab.Config{Cgroup: flags[1]})
		b.Flags = append(append(b.Flags, flags...), "--proxy-mode", mode)
		return b
	case Legacy:
		b := NewFor(t, "iptables")
		b.Run(Legacy, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
		return b
	}
	b := New(t)
	b.Flags = append(b.Flags, "--proxy-mode", mode)
	return b
}

func newWith(t *testing.T, c lab.Config) *Testbed {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	b := &Testbed{T: t, Lab: l, Pods: map[netip.Addr]*lab.Host{}, Dir: t.TempDir(), Socket: filepath.Join(short, "s")}
	b.Flags = []string{"--manifests", b.Dir, "--nodeport-addresses", "0.0.0.0/0"}
	for name, addrs := range map[string][]netip.Addr{"a": {PodA, PodV6}, "b": {PodB}, "client": {ClientIP, ClientV6}} {
		h, err := l.AddPod(name, addrs...)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			b.Pods[a] = h
			if name != "client" {
				b.Listen(proxy.TCP, a)
			}
		}
	}
	b.Client = b.Pods[ClientIP]
	return b
}

// For returns the testbed for a subtest.
func (b *Testbed) For(t *testing.T) *Testbed {
	c := *b
	c.T = t
	return &c
}

// NeedLinux skips what a kernel before a version does not have.
func (b *Testbed) NeedLinux(first, what string) {
	b.T.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		b.T.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	if version.MustParseGeneric(release).LessThan(version.MustParseGeneric(first)) {
		b.T.Skipf("%s from Linux %s on, and this is %s", what, first, release)
	}
}
