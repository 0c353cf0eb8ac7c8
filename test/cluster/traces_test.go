package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/test/cluster/testbed"
)

// legacyPrograms returns a folder whose iptables is the legacy variant.
func legacyPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(name + "-legacy" + what)
			if err == nil {
				err = os.Symlink(program, filepath.Join(dir, name+what))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// wipe removes all rules there are on a node, whoever made them.
const wipe = `nft flush ruleset
for program in iptables-legacy ip6tables-legacy; do
	for table in filter nat mangle; do $program -t $table -F; $program -t $table -X; done
done`

// wipeAfter leaves no rules and no connections on the nodes to the next test:
// kube-proxy leaves some that are not for us to clean up. A flow of UDP to an
// address that two tests use would go on to a pod that is gone.
func (s *scene) wipeAfter() {
	s.Cleanup(func() {
		for _, n := range bed.Nodes {
			onHost(s.T, n, "sh", "-c", wipe)
			if err := n.Host.FlushConntrack(); err != nil {
				s.Error(err)
			}
		}
	})
}

// onHost runs a program on a node and returns what it prints.
func onHost(t *testing.T, n *testbed.Node, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline) // it may be called when the test has ended
	defer cancel()
	var out []byte
	err := n.Host.Do(func() (err error) {
		out, err = exec.CommandContext(ctx, name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("run %s %q on %s: %v: %s", name, args, n.Name, err, out)
	}
	return string(out)
}

// kubeletChain is the kubelet's. kube-proxy makes it too if the kubelet has not
// yet, and leaves it when it cleans up; so do we.
const kubeletChain = "KUBE-FIREWALL"

// traces returns what of proxies' there is on a node.
func (s *scene) traces(n *testbed.Node) string {
	s.Helper()
	var found []string
	for line := range strings.Lines(onHost(s.T, n, "nft", "list", "tables")) {
		if f := strings.Fields(line); strings.HasPrefix(f[2], "sluice") || f[2] == "kube-proxy" {
			found = append(found, "table "+f[2])
		}
	}
	for _, variant := range []string{"nft", "legacy"} {
		for _, program := range []string{"iptables-", "ip6tables-"} {
			rules := onHost(s.T, n, program+variant+"-save")
			if strings.Contains(strings.ReplaceAll(rules, kubeletChain, ""), "KUBE-") {
				found = append(found, "iptables-"+variant)
			}
		}
	}
	if strings.Contains(onHost(s.T, n, "ipset", "list", "-n"), "KUBE-") {
		found = append(found, "IP sets")
	}
	if strings.Contains(onHost(s.T, n, "ip", "-br", "link"), "kube-ipvs0") {
		found = append(found, "link kube-ipvs0")
	}
	if pins, err := filepath.Glob(filepath.Join(n.Pins, "*")); err != nil {
		s.Fatal(err)
	} else if n.Pins != "" && len(pins) > 0 {
		found = append(found, "programs")
	}
	slices.Sort(found)
	return strings.Join(slices.Compact(found), ", ")
}
