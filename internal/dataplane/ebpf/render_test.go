package ebpf_test

import (
	"strings"
	"testing"

	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// TestRenderDiff checks the difference before the daemon runs, while it runs, and when an
// entry is missing.
func TestRenderDiff(t *testing.T) {
	h := newHost(t)
	diff := func() (string, int) {
		t.Helper()
		var out strings.Builder
		r := &mode.Rendering{Settings: h.Settings, Want: proxy.NewState(), Diff: true, Out: &out}
		r.Want.Node = h.node
		sp := row("web", proxy.TCP, web, pods[0])
		r.Want.Rows[sp.Key] = sp
		h.must(h.lab.Node().Do(func() error { return ebpf.Render(t.Context(), r) }))
		return out.String(), r.Lines
	}
	if out, _ := diff(); !strings.Contains(out, "+ endpoints row 1, Cluster 0: 10.0.0.11:5300, may be on this node\n") {
		t.Errorf("before the daemon runs:\n%s", out)
	}
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods[0]))
	if out, lines := diff(); lines != 0 {
		t.Errorf("while it runs:\n%s", out)
	}
	var key [8]byte
	if m := h.d.Map("endpoints"); m.NextKey(nil, &key) != nil || m.Delete(key) != nil {
		t.Fatal("cannot delete an entry")
	}
	if out, lines := diff(); lines != 1 || !strings.HasPrefix(out, "# entries of maps\n+ endpoints row ") {
		t.Errorf("without an endpoint:\n%s", out)
	}
}
