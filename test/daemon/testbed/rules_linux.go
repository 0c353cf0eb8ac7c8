package testbed

import (
	"slices"
	"strings"

	"sluice/internal/conformance/churn"
	"sluice/internal/conformance/ruleset"
)

// Ruleset returns what the node does with packets.
func (b *Testbed) Ruleset() string {
	b.T.Helper()
	text, err := ruleset.Of(b.Lab.Node())
	if err != nil {
		b.T.Fatal(err)
	}
	return text
}

// Tables lists the tables of nf_tables that the node has.
func (b *Testbed) Tables() string {
	b.T.Helper()
	return strings.TrimSpace(b.Run("nft", "list", "tables"))
}

// AwaitFreshRules waits until the kernel has what a new daemon of a mode would make. It may take a
// moment, because a file that is empty is not believed at once.
func (b *Testbed) AwaitFreshRules(mode string) {
	b.T.Helper()
	if mode == Legacy {
		mode = "iptables"
	}
	flags := append(b.settings(), "--proxy-mode", mode)
	if i := slices.Index(flags, "--cgroup-root"); i >= 0 { // which a rendering does not have
		flags = slices.Delete(flags, i, i+2)
	}
	Eventually(b.T, "what a new daemon would make", func() bool {
		err := churn.Compare(b.T.Context(), b.Lab.Node(), Binary(b.T), flags...)
		if err != nil {
			b.T.Log(err)
		}
		return err == nil
	})
}
