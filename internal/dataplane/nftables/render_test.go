package nftables

import (
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// render prints a state, or its difference from the kernel.
func render(t *testing.T, want *proxy.State, diff bool) (string, int) {
	t.Helper()
	var out strings.Builder
	r := &mode.Rendering{Settings: mode.Settings{MasqueradeBit: 14}, Want: want, Diff: diff, Out: &out}
	if err := Alone.Render(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return out.String(), r.Lines
}

// TestRender checks that the nft program can read random rows, and that there is no difference
// after they were written, by Sync or row by row, which leaves unused classes behind.
func TestRender(t *testing.T) {
	lab.Namespace(t)
	d, _ := openKernel(t)
	r := rand.New(rand.NewPCG(1, 1))
	s := proxy.NewState()
	s.Node = testNode()
	s.Node.LocalPods.Interface, s.Node.LocalPods.IsPrefix = "cni", true
	proxytest.MustSync(t, d, s)
	for range 2 {
		for i := range 40 {
			sp := randomRow(r, i)
			step := &proxy.Delta{Upserts: []proxy.Upsert{{Old: s.Rows[sp.Key], New: sp}}}
			proxytest.MustApply(t, d, step)
			s.Apply(step)
		}
	}
	settled(t, func() string { out, _ := render(t, s, true); return out })
	if out, lines := render(t, s, true); lines != 0 {
		t.Errorf("%d lines of difference after what was written row by row:\n%s", lines, out)
	}
	text, _ := render(t, s, false)
	nft := exec.CommandContext(t.Context(), "nft", "-c", "-f", "-")
	nft.Stdin = strings.NewReader(strings.ReplaceAll(text, " sluice", " read"))
	if out, err := nft.CombinedOutput(); err != nil {
		t.Errorf("nft -c -f: %v\n%s\n%s", err, out, text)
	}
}
