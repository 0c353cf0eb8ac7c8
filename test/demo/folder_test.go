package main

import (
	"net/netip"
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
	c, err := readCatalog(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, s := range c.services {
		out[s.name] = nil
		for _, e := range s.endpoints {
			out[s.name] = append(out[s.name], e.String())
		}
	}
	return out
}

func TestExamples(t *testing.T) {
	c, err := readCatalog(examples)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range c.services {
		got = append(got, newScore(s).view(nil).name+": "+newScore(s).view(nil).what)
	}
	want := []string{
		"web: ClusterIP 10.96.0.10:80, from pod and node",
		"shop: NodePort 192.168.0.2:30080, from pod, node and outside",
		"gate: LoadBalancer 198.51.100.80:443, from outside; Local: client address kept",
		"idle: ClusterIP 10.96.0.40:80, from pod and node",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Services mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]uint16{8080, 8081, 8443}, c.ports()); diff != "" {
		t.Errorf("ports mismatch (-want +got):\n%s", diff)
	}
	if acts, err := script(c); err != nil || len(acts) != 4 || c.node != "node-1" || len(c.localPods()) != 3 {
		t.Errorf("%d acts (%v), node %s, %d pods", len(acts), err, c.node, len(c.localPods()))
	}
}

// TestEditions follows the acts through the files, up to the way back.
func TestEditions(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	f, err := newFolder(examples)
	if err != nil {
		t.Fatal(err)
	}
	c, err := readCatalog(f.live())
	if err != nil {
		t.Fatal(err)
	}
	acts, err := script(c)
	if err != nil {
		t.Fatal(err)
	}
	before := reached(t, f.live())
	for i, web := range [][]string{
		{"10.244.0.11:8080", "10.244.0.12:8080", "10.244.0.13:8080"},
		{"10.244.0.11:8080", "10.244.0.13:8080"},
		{"10.244.0.11:8080", "10.244.0.13:8080", "10.244.1.14:8080"},
		{"10.244.0.11:8080", "10.244.0.12:8080", "10.244.0.13:8080"},
	} {
		if err := f.prepare(acts[i].edition); err != nil {
			t.Fatal(err)
		}
		if err := f.publish(); err != nil {
			t.Fatal(err)
		}
		now := reached(t, f.live())
		if diff := cmp.Diff(web, now["web"]); diff != "" {
			t.Errorf("act %d: endpoints of web mismatch (-want +got):\n%s", i+1, diff)
		}
		if slices.Contains(now["gate"], arrivalAddr+":8443") || len(now["idle"]) > 0 {
			t.Errorf("act %d: gate has %v, idle has %v", i+1, now["gate"], now["idle"])
		}
	}
	if diff := cmp.Diff(before, reached(t, f.live())); diff != "" {
		t.Errorf("a round does not end as it began (-before +after):\n%s", diff)
	}
	if err := f.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}

// TestPublish leaves files alone that do not change.
func TestPublish(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	f, err := newFolder(examples)
	if err != nil {
		t.Fatal(err)
	}
	inode := func(name string) os.FileInfo {
		t.Helper()
		info, err := os.Stat(filepath.Join(f.live(), name))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	node, web := inode("node.yaml"), inode("web.yaml")
	if err := f.prepare(edition{without: []netip.Addr{netip.MustParseAddr("10.244.0.13")}}); err != nil {
		t.Fatal(err)
	}
	if err := f.publish(); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(node, inode("node.yaml")) {
		t.Error("node.yaml was replaced though it did not change")
	}
	if os.SameFile(web, inode("web.yaml")) {
		t.Error("web.yaml was not replaced by another file")
	}
}

func TestBadFolders(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	if _, err := newFolder(t.TempDir()); err == nil {
		t.Error("a folder without manifests is no error")
	}
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n"
	for _, text := range []string{
		"kind: [",
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n",
		node,
		node + "status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}\n---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80, protocol: UDP}]}\n",
	} {
		write(text)
		if c, err := readCatalog(dir); err == nil {
			t.Errorf("no error for %q, but %+v", text, c)
		}
	}
}
