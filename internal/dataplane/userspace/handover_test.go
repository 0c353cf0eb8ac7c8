package userspace

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/balance"
	"sluice/internal/proxy"
)

// TestHandoverOfAffinity checks that remembered clients are handed over by the monotonic clock:
// otherwise all would be forgotten when the clock is set forward, and none when it is set back.
func TestHandoverOfAffinity(t *testing.T) {
	key := proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "default", Name: "web", Protocol: proxy.TCP}}
	at, from := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddr("10.0.0.9")
	text, err := json.Marshal(handoverMessage{Client: &affinityEntry{key, from, proxy.ScopeLocal, at, time.Hour}})
	var h handoverMessage
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &server{index: balance.NewIndex()}
	s.index.Update([]proxy.PortKey{key}, map[proxy.PortKey]*proxy.ServicePort{key: {Key: key, Affinity: 3 * time.Hour}})
	s.adopt(&h, nil, nil)
	for client, r := range s.index.Get(key).Clients {
		if idle := time.Since(r.Used); client == (balance.Client{Addr: from, Scope: proxy.ScopeLocal}) && r.Endpoint == at && idle >= time.Hour && idle < 2*time.Hour && strings.Contains(r.Used.String(), " m=") {
			return
		}
		t.Errorf("%+v: %+v", client, r)
	}
	t.Error("the client is not known")
}

// handoverPair returns the two ends of a handover.
func handoverPair(t *testing.T) (predecessor, successor *net.UnixConn) {
	t.Helper()
	at := &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(t.TempDir(), "relay")}
	l, err := net.ListenUnix(at.Net, at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if successor, err = net.DialUnix(at.Net, nil, at); err != nil {
		t.Fatal(err)
	}
	if predecessor, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = predecessor.Close(), successor.Close() })
	return predecessor, successor
}

// TestPredecessorStalls checks that a predecessor that stops sending, or ends, does not stop its
// successor from starting.
func TestPredecessorStalls(t *testing.T) {
	_, c := handoverPair(t)
	if err := c.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := (&server{}).receiveHandover(c); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a predecessor that stalls: error %v; want a time-out", err)
	}
	predecessor, c := handoverPair(t)
	_ = predecessor.Close()
	if err := (&server{}).receiveHandover(c); err != nil {
		t.Errorf("a predecessor that ends: %v", err)
	}
}

// TestConnectionsAreSentFirst checks that connections do not wait until very many remembered clients
// are sent.
func TestConnectionsAreSentFirst(t *testing.T) {
	s := oneWorker(t)
	key := proxy.PortKey{ServicePortName: proxy.ServicePortName{Name: "web", Protocol: proxy.TCP}}
	s.index.Update([]proxy.PortKey{key}, map[proxy.PortKey]*proxy.ServicePort{key: {Key: key, Affinity: time.Hour}})
	s.index.Get(key).Restore(balance.Client{Addr: netip.MustParseAddr("10.0.0.9")}, balance.Remembered{Used: time.Now()})
	c, peer := halfConnection(t)
	c.fds[endpoint] = peer
	s.workers[0].sockets[int32(c.fds[client])] = watched{socket: c}
	predecessor, successor := handoverPair(t)
	s.handOver(predecessor)
	if err := successor.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<10)
	for i, want := range []string{"Connection", "Client"} {
		n, _, _, _, err := successor.ReadMsgUnix(b, nil)
		if err != nil || !strings.HasPrefix(string(b[:n]), `{"`+want+`":`) {
			t.Errorf("message %d is %s, error %v; want a %s", i, b[:n], err, want)
		}
	}
}

// halfConnection returns a connection without an endpoint, and the client's descriptor.
func halfConnection(t *testing.T) (c *connection, peer int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &connection{service: balance.NewService(proxy.PortKey{}), fds: [2]int{fds[0], -1}}, fds[1]
}

// TestBytesWithoutPipe ends a connection if the predecessor did not send the pipe that holds its
// bytes.
func TestBytesWithoutPipe(t *testing.T) {
	s := oneWorker(t)
	for _, sent := range []int{0, 1} { // of the descriptors besides the client's
		c, peer := halfConnection(t)
		fds := []int{peer}
		c.Held[client] = 1
		c.resume(s.workers[0], fds[:sent])
		if c.fds[client] >= 0 || s.open[proxy.TCP].Load() != 0 {
			t.Errorf("with %d descriptors it goes on", sent)
		}
		closeAll(fds[sent:])
	}
}
