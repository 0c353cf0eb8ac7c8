package traffic_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestListenEverywhere asks a listener on every address, by Ask and by Probe.
func TestListenEverywhere(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	pod, err := l.AddPod("pod", netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	any := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.IPv4Unspecified(), port) }
	sink, err := pod.Sink(any(8081))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	to, client := netip.AddrPortFrom(pod.Addrs[0], 8080), netip.MustParseAddr("192.168.0.2")
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
		ln, err := pod.Listen(p, any(8080))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		seen, err := l.Node().Probe(t.Context(), []traffic.Flow{{Protocol: p, Src: client, Dst: to, Patience: 3 * time.Second}})
		if want := (traffic.Answer{By: to, Client: client}); err != nil || seen[0].Answer != want {
			t.Errorf("%v: Probe got %v, %v, want %v", p, seen, err, want)
		}
		err = l.Node().Do(func() error {
			a, err := traffic.Ask(p, to, time.Second)
			if want := (traffic.Answer{By: to, Client: netip.MustParseAddr("10.0.0.1")}); err != nil || a != want {
				t.Errorf("%v: Ask got %v, %v, want %v", p, a, err, want)
			}
			if a, err := traffic.Ask(p, netip.AddrPortFrom(to.Addr(), 9), time.Second); err == nil {
				t.Errorf("%v: nobody listens, and Ask got %v", p, a)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	err = l.Node().Do(func() error {
		fd, err := traffic.Connect(proxy.TCP, netip.AddrPortFrom(to.Addr(), 8081), time.Second)
		if err != nil {
			return err
		}
		if n, err := unix.Write(fd, make([]byte, 1<<16)); err != nil || n == 0 {
			t.Errorf("the sink took %d bytes, %v", n, err)
		}
		return unix.Close(fd)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSCTPIsTheKernels finds a listener among the kernel's own SCTP endpoints,
// where the kernel has any.
func TestSCTPIsTheKernels(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	ln, err := l.Node().Listen(proxy.SCTP, netip.MustParseAddrPort("192.168.0.2:8080"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
	})
	var endpoints []byte
	err = l.Node().Do(func() (err error) {
		endpoints, err = os.ReadFile("/proc/thread-self/net/sctp/eps")
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the kernel has no SCTP sockets (CONFIG_IP_SCTP)")
	}
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m) 8080 .* 192\.168\.0\.2 *$`).Match(endpoints) {
		t.Errorf("the listener is not among the kernel's endpoints:\n%s", endpoints)
	}
}
