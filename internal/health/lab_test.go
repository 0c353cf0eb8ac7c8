package health

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

// testLab is a node in a network namespace, with addresses of both families.
type testLab struct {
	*lab.Lab
	t *testing.T
}

func newLab(t *testing.T) *testLab {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return &testLab{l, t}
}

// code asks an address of the node from the node itself, and returns the status of the answer; 0:
// nobody answers.
func (l *testLab) code(at netip.AddrPort) int {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second) // nobody says that an address is gone
		defer cancel()
		return l.Node().Dial(ctx, proxy.TCP, netip.Addr{}, at)
	}
	c := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	r, err := c.Get("http://" + at.String() + "/any")
	if err != nil {
		return 0
	}
	r.Body.Close()
	return r.StatusCode
}
