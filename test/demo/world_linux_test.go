package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const examples = "../../examples"

// reached returns where requests to each Service of a folder should go.
func reached(t *testing.T, dir string) map[string][]string {
	t.Helper()
	e, err := readExpectations(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, tg := range e.targets() {
		out[tg.name] = nil
		for _, ep := range tg.endpoints {
			out[tg.name] = append(out[tg.name], ep.String())
		}
		slices.Sort(out[tg.name])
		out[tg.name] = slices.Compact(out[tg.name])
	}
	return out
}

func TestExamples(t *testing.T) {
	e, err := readExpectations(examples)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tg := range e.targets() {
		got = append(got, tg.name+": "+tg.description)
	}
	want := []string{
		"web: ClusterIP 10.96.0.10:80, from pod, node",
		"shop: NodePort 192.168.0.2:30080, from pod, node, outside",
		"gate: LoadBalancer 198.51.100.80:443, from outside; client address kept",
		"idle: ClusterIP 10.96.0.40:80, from pod, node",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Services mismatch (-want +got):\n%s", diff)
	}
	var ports []uint16
	for _, ep := range e.pods()[e.local[0]] {
		ports = append(ports, ep.Addr.Port())
	}
	slices.Sort(ports)
	if diff := cmp.Diff([]uint16{8080, 8081, 8443}, ports); diff != "" {
		t.Errorf("ports mismatch (-want +got):\n%s", diff)
	}
	if len(e.steps()) != 4 || e.node().Name != "node-1" || len(e.local) != 3 {
		t.Errorf("%d steps, node %s, %d pods", len(e.steps()), e.node().Name, len(e.local))
	}
}

// newManifests copies the examples into a folder of the test.
func newManifests(t *testing.T) manifests {
	t.Helper()
	m := manifests{examples: examples, dir: t.TempDir()}
	if err := os.Mkdir(m.watchedDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, m, edit{})
	return m
}

func write(t *testing.T, m manifests, e edit) {
	t.Helper()
	files, err := m.apply(e)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.write(files); err != nil {
		t.Fatal(err)
	}
}

// TestSteps follows the steps through the files, up to the way back.
func TestSteps(t *testing.T) {
	m := newManifests(t)
	e, err := readExpectations(m.watchedDir())
	if err != nil {
		t.Fatal(err)
	}
	steps, before := e.steps(), reached(t, m.watchedDir())
	for i, web := range [][]string{
		{"10.244.0.11:8080", "10.244.0.12:8080", "10.244.0.13:8080"},
		{"10.244.0.11:8080", "10.244.0.13:8080"},
		{"10.244.0.11:8080", "10.244.0.13:8080", "10.244.1.14:8080"},
		{"10.244.0.11:8080", "10.244.0.12:8080", "10.244.0.13:8080"},
	} {
		write(t, m, steps[i])
		now := reached(t, m.watchedDir())
		if diff := cmp.Diff(web, now["web"]); diff != "" {
			t.Errorf("step %d: endpoints of web mismatch (-want +got):\n%s", i+1, diff)
		}
		if slices.Contains(now["gate"], addedAddr+":8443") || len(now["idle"]) > 0 {
			t.Errorf("step %d: gate has %v, idle has %v", i+1, now["gate"], now["idle"])
		}
		// What the demo expects without reading the files again.
		e.change(steps[i])
		for _, tg := range e.targets() {
			for _, ep := range tg.endpoints {
				if !slices.Contains(now[tg.name], ep.String()) {
					t.Errorf("step %d: %s is expected at %v, the files have %v", i+1, tg.name, ep, now[tg.name])
				}
			}
		}
	}
	if diff := cmp.Diff(before, reached(t, m.watchedDir())); diff != "" {
		t.Errorf("a round does not end as it began (-before +after):\n%s", diff)
	}
}

// TestPublish leaves files alone that do not change.
func TestPublish(t *testing.T) {
	m := newManifests(t)
	inode := func(name string) os.FileInfo {
		t.Helper()
		info, err := os.Stat(filepath.Join(m.watchedDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	node, web := inode("node.yaml"), inode("web.yaml")
	e, err := readExpectations(examples)
	if err != nil {
		t.Fatal(err)
	}
	write(t, m, edit{remove: e.local[2:]})
	if !os.SameFile(node, inode("node.yaml")) {
		t.Error("node.yaml was replaced though it did not change")
	}
	if os.SameFile(web, inode("web.yaml")) {
		t.Error("web.yaml was not replaced by another file")
	}
}

func TestBadFolders(t *testing.T) {
	if _, err := readExpectations(t.TempDir()); err == nil {
		t.Error("a folder without manifests is no error")
	}
	dir := t.TempDir()
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n"
	for _, text := range []string{
		"kind: [",
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n",
		node,
		node + "status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}\n---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80, protocol: UDP}]}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if e, err := readExpectations(dir); err == nil {
			t.Errorf("no error for %q, but %+v", text, e)
		}
	}
}
