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

// compare compares the kernel with the source's objects. It retries for a second, because a daemon
// believes in the deletion of a slice's file only after a moment, and reports no number of slices
// to wait for.
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

// Compare compares the kernel with what a new daemon with these flags would write. It tries three
// times, because chains and elements that change while they are listed may be listed twice or not
// at all.
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
	return fmt.Errorf("the kernel differs from what a new daemon would write: %w\n%s", err, text.String())
}

// slotPattern matches the slot of an endpoint in iptables rules, nftables keys and map entries. A
// restart assigns new slots.
var slotPattern = regexp.MustCompile(` -m statistic --mode random --probability [0-9.]+| \. f[0-9a-f]{3}:[0-9a-f]+| [0-9]+:`)

// differOnlyInOrder reports whether the lines of a diff cancel out but for the slots of endpoints.
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
