package command

import (
	"net/http"
	"strings"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestBadManifests breaks files in many ways: each is named, the last good state
// and all other Services go on, and mending the file mends the state.
func TestBadManifests(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("good.yaml", testbed.Service("good", testbed.SecondIP, testbed.PodB))
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	d := bed.Start(nil)
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	for _, c := range []struct{ name, text, line string }{
		{"not YAML", "apiVersion: v1\nkind: Service\n  metadata: [", "web.yaml"},
		{"a wrong type", strings.Replace(testbed.Service("web", testbed.ClusterIP, testbed.PodB), "port: 80}", "port: eighty}", 1), "spec.ports"},
		{"a port too high", strings.Replace(testbed.Service("web", testbed.ClusterIP, testbed.PodB), "port: 80}", "port: 70000}", 1), "70000"},
		{"a duplicate key", "apiVersion: v1\napiVersion: v1\n" + testbed.Service("web", testbed.ClusterIP, testbed.PodB), "apiVersion"},
	} {
		before := len(d.Log())
		bed.Write("web.yaml", c.text)
		testbed.Eventually(t, c.name+": a line about it", func() bool {
			return strings.Contains(d.Log()[before:], c.line) && strings.Contains(d.Log()[before:], "web.yaml")
		})
		if !bed.Answers(testbed.SecondIP, testbed.PodB)() {
			t.Errorf("%s: the other Service does not answer", c.name)
		}
	}
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	testbed.Eventually(t, "the mended Service", bed.Answers(testbed.ClusterIP, testbed.PodB))
}

// TestNodeManifestGoes has another Node take the place of this one in the folder, which need
// have none: the daemon is as healthy as one that starts without it.
func TestNodeManifestGoes(t *testing.T) {
	bed := testbed.New(t)
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: test-node}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.2}]}\n"
	bed.Write("node.yaml", node)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Start(nil)
	healthy := func() bool {
		code, _ := bed.Health()
		return code == http.StatusOK
	}
	testbed.Eventually(t, "health", healthy)
	bed.Write("node.yaml", strings.Replace(node, "test-node", "another", 1))
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	testbed.Eventually(t, "what was written after it", bed.Answers(testbed.ClusterIP, testbed.PodB))
	bed.AwaitSync()
	if !healthy() {
		t.Error("not healthy without a Node")
	}
}
