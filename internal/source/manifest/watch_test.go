package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/source/manifest"
	"sluice/internal/source/sourcetest"
)

func TestRunFirstReading(t *testing.T) {
	dir := t.TempDir()
	node := func(name string) string { return "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\n" }
	for name, text := range map[string]string{
		"b/all.yml": documents(node("here"), node("there"), goodSlice,
			"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.96.0.0/16]}\n"),
		"a.yaml":            documents(service("web", "10.0.0.1", 80), service("headless", "None", 80)),
		".hidden.yaml":      service("hidden", "10.0.0.2", 80),
		".hidden/deep.yaml": service("deep", "10.0.0.3", 80),
		"a.yaml~":           service("backup", "10.0.0.4", 80),
		"a.yaml.tmp":        service("tmp", "10.0.0.5", 80),
		"readme.txt":        "not a manifest",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := newWatched(t, dir)
	w.events(slices.Concat([]string{"+svc web 10.0.0.1:80", "+node here", "+slice web-1", "+cidr k [10.96.0.0/16]"}, allSynced)...)
	w.write("a.yaml", documents(edit(service("web", "10.0.0.1", 80), "port: 80", "port: 80, name: http"), service("headless", "10.0.0.9", 80)))
	w.events("~svc web 10.0.0.1:80", "+svc headless 10.0.0.9:80")
	w.write("a.yaml", service("headless", "None", 80))
	w.events("-svc web 10.0.0.1:80", "-svc headless 10.0.0.9:80")
	w.reports()
}

func TestRunMissingFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nowhere")
	err := (manifest.Source{Dir: dir}).Run(t.Context(), &sourcetest.Recorder{})
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != "read manifest folder "+dir+": no such file or directory" {
		t.Errorf("Run returned %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (manifest.Source{Dir: file}).Run(t.Context(), &sourcetest.Recorder{}); err == nil {
		t.Errorf("Run over a file returned nil")
	}
}

func TestRunFollowsChanges(t *testing.T) {
	w := start(t)
	w.write("web.yaml", service("web", "10.0.0.1", 81))
	w.events("~svc web 10.0.0.1:80 -> web 10.0.0.1:81")

	// An atomic replacement, as editors and tools do it.
	w.write("web.yaml.tmp", documents(service("web", "10.0.0.1", 82), service("db", "10.0.0.2", 5432)))
	w.must(os.Rename(w.path("web.yaml.tmp"), w.path("web.yaml")))
	w.events("~svc web 10.0.0.1:81 -> web 10.0.0.1:82", "+svc db 10.0.0.2:5432")

	// Objects that change places are not changed objects.
	w.write("web.yaml", documents(service("db", "10.0.0.2", 5432), service("web", "10.0.0.1", 82)))
	w.write("sub/deeper/new.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"new"},"spec":{"clusterIP":"10.0.0.3","ports":[{"port":1}]}}`)
	w.events("+svc new 10.0.0.3:1")
	w.write("sub/deeper/new.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"new"},"spec":{"clusterIP":"10.0.0.3","ports":[{"port":2}]}}`)
	w.events("~svc new 10.0.0.3:1 -> new 10.0.0.3:2")
	w.must(os.RemoveAll(w.path("sub")))
	w.events("-svc new 10.0.0.3:2")
	w.write("sub/again.yaml", service("again", "10.0.0.4", 1))
	w.events("+svc again 10.0.0.4:1")
	w.write("sub/again.yaml", service("again", "10.0.0.4", 2))
	w.events("~svc again 10.0.0.4:1 -> again 10.0.0.4:2")

	// Nor is a file that is moved, or put aside and written again.
	w.must(os.Rename(w.path("web.yaml"), w.path("moved.yaml")))
	w.write("mark.yaml", service("mark", "10.0.0.5", 1))
	w.events("+svc mark 10.0.0.5:1")
	w.must(os.Rename(w.path("mark.yaml"), w.path("mark.yaml~")))
	w.write("other.yaml", service("other", "10.0.0.6", 1))
	w.events("+svc other 10.0.0.6:1")
	w.write("mark.yaml", service("mark", "10.0.0.5", 2))
	w.events("~svc mark 10.0.0.5:1 -> mark 10.0.0.5:2")

	w.must(os.Remove(w.path("moved.yaml")))
	w.events("-svc db 10.0.0.2:5432", "-svc web 10.0.0.1:82")
	w.reports()
}

func TestRunSubfolderMadeAgain(t *testing.T) {
	w := start(t)
	for i := range 10 {
		// The new directory may well get the inode number of the old one.
		w.must(os.RemoveAll(w.path("sub")))
		w.must(os.Mkdir(w.path("sub"), 0o755))
		w.write("mark.yaml", service("mark", "10.0.0.2", i+1))
		if i == 0 {
			w.events("+svc mark 10.0.0.2:1")
		} else {
			w.events(fmt.Sprintf("~svc mark 10.0.0.2:%d -> mark 10.0.0.2:%d", i, i+1))
		}
	}
	w.write("sub/deep.yaml", service("deep", "10.0.0.3", 1))
	w.events("+svc deep 10.0.0.3:1")
}

func TestRunSameFingerprint(t *testing.T) {
	w := start(t)
	info, err := os.Stat(w.path("web.yaml"))
	w.must(err)
	w.write("web.yaml", service("web", "10.0.0.1", 81))
	w.must(os.Chtimes(w.path("web.yaml"), info.ModTime(), info.ModTime()))
	w.events("~svc web 10.0.0.1:80 -> web 10.0.0.1:81")
}

func TestRunKeepsTheLastGoodState(t *testing.T) {
	w := start(t)
	w.write("web.yaml", documents(service("web", "10.0.0.1", 80), service("db", "10.0.0.2", 5432)))
	w.events("+svc db 10.0.0.2:5432")

	// The second half is not written; the first is used.
	w.write("web.yaml", documents(service("web", "10.0.0.1", 81), service("db", "10.0.0.2", 5432)[:60]))
	w.events("~svc web 10.0.0.1:80 -> web 10.0.0.1:81")
	w.reports("web.yaml: document 2 (line 9): does not parse: did not find expected ',' or '}'")
	// Another reading says nothing new about the same problem.
	w.write("web.yaml", documents(service("web", "10.0.0.1", 82), service("db", "10.0.0.2", 5432)[:60]))
	w.events("~svc web 10.0.0.1:81 -> web 10.0.0.1:82")

	w.write("web.yaml", documents(service("web", "10.0.0.1", 82), service("db", "10.0.0.2", 5433)))
	w.events("~svc db 10.0.0.2:5432 -> db 10.0.0.2:5433")
	w.reports("mended: web.yaml: document 2 (line 9): does not parse: did not find expected ',' or '}'")

	// A refused object stays as it was.
	w.write("web.yaml", documents(service("web", "10.0.0.1", 83), service("db", "10.0.0.2", 70000)))
	w.events("~svc web 10.0.0.1:82 -> web 10.0.0.1:83")
	w.reports("web.yaml: document 2 (line 9): Service default/db: spec.ports[0].port: 70000 is not a port (1 to 65535)")
	// It gives way to one that really is there.
	w.write("zz.yaml", service("db", "10.0.0.9", 5432))
	w.events("~svc db 10.0.0.2:5433 -> db 10.0.0.9:5432")
	w.must(os.Remove(w.path("zz.yaml")))
	w.events("~svc db 10.0.0.9:5432 -> db 10.0.0.2:5433")

	// A file with no errors holds exactly what it holds.
	w.write("web.yaml", service("web", "10.0.0.1", 83))
	w.events("-svc db 10.0.0.2:5433")
	w.reports("mended: web.yaml: document 2 (line 9): Service default/db: spec.ports[0].port: 70000 is not a port (1 to 65535)")
}

func TestRunEmptiedAndUnreadableFile(t *testing.T) {
	w := start(t)
	w.write("web.yaml", "")
	w.reports("web.yaml: is empty; its last objects stay in force until it is written again or removed")
	w.write("web.yaml", service("web", "10.0.0.1", 81))
	w.events("~svc web 10.0.0.1:80 -> web 10.0.0.1:81")
	w.reports("mended: web.yaml: is empty; its last objects stay in force until it is written again or removed")

	w.must(os.Symlink("web.yaml", w.path("loop")))
	w.must(os.Rename(w.path("loop"), w.path("web.yaml")))
	w.reports("web.yaml: cannot be read: too many levels of symbolic links; its last objects stay in force")
	w.must(os.Remove(w.path("web.yaml")))
	w.events("-svc web 10.0.0.1:81")
	w.reports("mended: web.yaml: cannot be read: too many levels of symbolic links; its last objects stay in force")
}

func TestRunSymlinkSwap(t *testing.T) {
	dir := t.TempDir()
	w := &watched{T: t, dir: dir}
	// The layout of a ConfigMap volume.
	w.write("..1/web.yaml", service("web", "10.0.0.1", 80))
	w.write("..2/web.yaml", service("web", "10.0.0.1", 81))
	w.write("elsewhere1/..data/x.yaml", service("hidden", "10.0.0.2", 1))
	w.must(os.Symlink("..1", w.path("..data")))
	w.must(os.Symlink("..data/web.yaml", w.path("web.yaml")))
	outside := t.TempDir()
	w.must(os.WriteFile(filepath.Join(outside, "out.yaml"), []byte(service("out", "10.0.0.3", 1)), 0o644))
	w.must(os.Symlink(dir, filepath.Join(outside, "circle")))

	w = newWatched(t, dir)
	w.events(slices.Concat([]string{"+svc web 10.0.0.1:80"}, allSynced)...)
	w.must(os.Symlink("..2", w.path("..data_tmp")))
	w.must(os.Rename(w.path("..data_tmp"), w.path("..data")))
	w.events("~svc web 10.0.0.1:80 -> web 10.0.0.1:81")

	// A linked directory is followed and watched, and left when the link goes.
	w.must(os.Symlink(outside, w.path("linked")))
	w.events("+svc out 10.0.0.3:1")
	w.must(os.WriteFile(filepath.Join(outside, "out.yaml"), []byte(service("out", "10.0.0.3", 2)), 0o644))
	w.events("~svc out 10.0.0.3:1 -> out 10.0.0.3:2")
	w.must(os.Remove(w.path("linked")))
	w.events("-svc out 10.0.0.3:2")
	w.reports() // The circle leads to no file twice.
}

func TestRunFolderVanishesAndReturns(t *testing.T) {
	w := start(t)
	gone := w.dir + ": the folder cannot be read: no such file or directory; its last objects stay in force"
	away := w.dir + ".away"
	w.must(os.Rename(w.dir, away))
	w.reports(gone)
	w.must(os.Rename(away, w.dir))
	w.reports("mended: " + gone)
	w.write("web.yaml", service("web", "10.0.0.1", 81))
	w.events("~svc web 10.0.0.1:80 -> web 10.0.0.1:81")

	w.must(os.RemoveAll(w.dir))
	w.reports(gone)
	// It is made under another name, so that it returns with all it holds.
	w.must(os.Mkdir(away, 0o755))
	w.must(os.WriteFile(filepath.Join(away, "web.yaml"), []byte(service("web", "10.0.0.1", 82)), 0o644))
	w.must(os.Rename(away, w.dir))
	w.reports("mended: " + gone)
	w.events("~svc web 10.0.0.1:81 -> web 10.0.0.1:82")
	w.write("web.yaml", service("web", "10.0.0.1", 83))
	w.events("~svc web 10.0.0.1:82 -> web 10.0.0.1:83")
}

func TestRunDuplicateInAnotherFile(t *testing.T) {
	w := start(t)
	w.write("zz.yaml", service("web", "10.0.0.2", 80))
	line := "zz.yaml: document 1 (line 1): Service default/web: is ignored, the same object is in web.yaml: document 1 (line 1)"
	w.reports(line)
	w.must(os.Remove(w.path("web.yaml")))
	w.events("~svc web 10.0.0.1:80 -> web 10.0.0.2:80")
	w.reports("mended: " + line)
}

func TestRunIsSilentAfterwards(t *testing.T) {
	w := start(t)
	w.stop()
	w.write("web.yaml", service("web", "10.0.0.1", 81))
	if got := w.rec.Take(); len(got) > 0 {
		t.Errorf("the handler was told %v after Run had returned", got)
	}
}

func TestLoad(t *testing.T) {
	w := &watched{T: t, dir: t.TempDir()}
	w.write("a.yaml", goodService)
	w.write("b/slice.yaml", edit(goodSlice, "name: http", "name: https"))
	w.write("c.yaml", edit(goodService, "10.96.0.10", "10.96.0.11"))
	// The slice of a Service without pods has no ports; that is not a mistake.
	w.write("d.yaml", documents(service("idle", "10.96.0.12", 80), edit(edit(edit(goodSlice, "name: web-1", "name: idle-1"),
		"service-name: web", "service-name: idle"), "endpoints:\n- addresses: [10.1.0.1]\nports:\n- name: http\n  port: 8080\n", "endpoints: []\n")))
	objects, problems, err := manifest.Load(w.dir)
	w.must(err)
	want := []string{svcWeb, "Service default/idle", sliceW, "EndpointSlice default/idle-1"}
	if diff := cmp.Diff(want, kept(objects)); diff != "" {
		t.Errorf("objects mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		`c.yaml: document 1 (line 1): Service default/web: is ignored, the same object is in a.yaml: document 1 (line 1)`,
		`d.yaml: document 2 (line 13): EndpointSlice default/idle-1: endpoints: is empty`,
	}, lines(problems)); diff != "" {
		t.Errorf("problems mismatch (-want +got):\n%s", diff)
	}
	if _, _, err := manifest.Load(w.path("nowhere")); err == nil || !strings.Contains(err.Error(), "read manifest folder") {
		t.Errorf("Load of a missing folder returned %v", err)
	}
}

func TestRunLogs(t *testing.T) {
	w := &watched{T: t, dir: t.TempDir()}
	w.write("bad.yaml", documents(edit(goodService, "port: 80", "port: 0"), edit(goodSlice, "\n- addresses: [10.1.0.1]", " []")))
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	done := make(chan error, 1)
	go func() { done <- manifest.Source{Dir: w.dir}.Run(ctx, &w.rec) }()
	w.events(slices.Concat([]string{"+slice web-1"}, allSynced)...)
	w.write("bad.yaml", goodService)
	w.events("-slice web-1", "+svc web 10.96.0.10:80")
	cancel()
	w.must(<-done)

	const line = `bad.yaml: document 1 (line 9): Service default/web: spec.ports[0].port: 0 is not a port (1 to 65535)`
	const note = `bad.yaml: document 2 (line 18): EndpointSlice default/web-1: endpoints: is empty`
	var got []string
	for _, entry := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
		got = append(got, fmt.Sprintf("%s %s: %v", entry.Type, entry.Message, entry.ParameterKVList[1]))
	}
	if diff := cmp.Diff([]string{
		"ERROR Manifest problem: " + line, "INFO Manifest note: " + note,
		"INFO Manifest problem is resolved: " + line, "INFO Manifest problem is resolved: " + note,
	}, got); diff != "" {
		t.Errorf("log mismatch (-want +got):\n%s", diff)
	}
}
