package churn

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
)

// compare compares what the kernel has with the source's objects. A slice whose file is
// missing is believed to be gone after a moment only, and nobody tells how many there are.
func (d *daemon) compare(ctx context.Context) error {
	folder, err := d.Folder(ctx)
	if err != nil {
		return err
	}
	for until := time.Now().Add(traffic.Scaled(time.Second)); ; {
		err := Compare(ctx, d.node, d.program, append([]string{"--manifests", folder}, d.flags...)...)
		if err == nil || time.Now().After(until) {
			return err
		}
	}
}

// Compare has what a new daemon with these flags would make be compared with what the
// kernel has. Chains and elements may be listed twice or not at all while they change.
func Compare(ctx context.Context, node *lab.Host, program string, flags ...string) (err error) {
	var text strings.Builder
	for range 3 {
		text.Reset()
		cmd := exec.CommandContext(ctx, program, append([]string{"render", "--diff"}, flags...)...)
		cmd.Stdout, cmd.Stderr = &text, &text
		if err = node.Start(cmd); err != nil {
			return err
		}
		if err = cmd.Wait(); err == nil || differOnlyInOrder(text.String()) {
			return nil
		}
	}
	return fmt.Errorf("the kernel is not as a new daemon would make it: %w\n%s", err, text.String())
}

// slotPattern is what says at which place an endpoint is among those of its Service, in
// rules of iptables, keys of nftables and entries of maps. A restart puts endpoints in
// order.
var slotPattern = regexp.MustCompile(` -m statistic --mode random --probability [0-9.]+| \. f[0-9a-f]{3}:[0-9a-f]+| [0-9]+:`)

// differOnlyInOrder reports whether what is there and what is missing is the same, but
// for its order.
func differOnlyInOrder(diff string) bool {
	n := map[string]int{}
	for line := range strings.Lines(diff) {
		if rule, ok := strings.CutPrefix(line, "+ "); ok {
			n[slotPattern.ReplaceAllString(rule, "")]++
		} else if rule, ok := strings.CutPrefix(line, "- "); ok {
			n[slotPattern.ReplaceAllString(rule, "")]--
		}
	}
	for _, left := range n {
		if left != 0 {
			return false
		}
	}
	return len(n) > 0
}
