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

// TestPredecessorStalls checks that a predecessor that stops sending, or ends, does not stop its
// successor from starting.
func TestPredecessorStalls(t *testing.T) {
	at := &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(t.TempDir(), "relay")}
	l, err := net.ListenUnix(at.Net, at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	connect := func() (predecessor, successor *net.UnixConn) {
		successor, err := net.DialUnix(at.Net, nil, at)
		if err != nil {
			t.Fatal(err)
		}
		if predecessor, err = l.AcceptUnix(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = predecessor.Close(), successor.Close() })
		return predecessor, successor
	}
	_, c := connect()
	if err := c.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := (&server{}).receiveHandover(c); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a predecessor that stalls: error %v; want a time-out", err)
	}
	predecessor, c := connect()
	_ = predecessor.Close()
	if err := (&server{}).receiveHandover(c); err != nil {
		t.Errorf("a predecessor that ends: %v", err)
	}
}
