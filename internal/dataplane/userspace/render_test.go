package userspace_test

import (
	"strings"
	"testing"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/userspace"
	"sluice/internal/proxy"
)

// TestRenderDiff finds no difference in the rules of a running daemon, and those of a state that it
// has not seen.
func TestRenderDiff(t *testing.T) {
	n := newNode(t, relaySettings())
	n.serve(proxy.TCP, near)
	diff := func(want *proxy.State) (string, int) {
		t.Helper()
		var out strings.Builder
		r := &mode.Rendering{Want: want, Diff: true, Out: &out}
		r.MasqueradeBit = 14
		n.must(n.lab.Node().Do(func() error { return userspace.Render(t.Context(), r) }))
		return out.String(), r.Lines
	}
	s := n.state(proxy.TCP, near)
	if out, lines := diff(s); lines != 0 {
		t.Errorf("the daemon's own state:\n%s", out)
	}
	for k, sp := range n.state(proxy.UDP, near).Rows {
		s.Rows[k] = sp
	}
	if out, lines := diff(s); lines != 1 || !strings.Contains(out, "\n+ add element ip sluice-userspace services { 172.30.0.1 . udp . 80 : ") {
		t.Errorf("another row:\n%s", out)
	}
}
