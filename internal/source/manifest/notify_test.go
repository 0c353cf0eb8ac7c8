package manifest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2/ktesting"
)

// TestWatcherFollowsTheFolder checks which directories are watched: those of
// the folder and its parent, no more and no fewer.
func TestWatcherFollowsTheFolder(t *testing.T) {
	log, _ := ktesting.NewTestContext(t)
	dir := filepath.Join(t.TempDir(), "dir")
	w := &watcher{log: log, dir: dir}
	defer func() { w.close() }()
	f := newFolder(dir)
	steps := []struct {
		name   string
		change func() error
		want   []string // below the folder
	}{
		{"at first", func() error { return os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755) }, []string{"..", ".", "a", "a/b"}},
		{"hidden", func() error { return os.Mkdir(filepath.Join(dir, ".git"), 0o755) }, []string{"..", ".", "a", "a/b"}},
		{"more", func() error { return os.Mkdir(filepath.Join(dir, "c"), 0o755) }, []string{"..", ".", "a", "a/b", "c"}},
		{"fewer", func() error { return os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, ".a")) }, []string{"..", ".", "c"}},
	}
	for _, step := range steps {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if err := f.scan(false); err != nil {
			t.Fatal(err)
		}
		before := len(watched(w))
		if changed := w.watch(f.dirs); changed != (before != len(step.want)) {
			t.Errorf("%s: follow says that something new is watched: %t", step.name, changed)
		}
		var want []string
		for _, rel := range step.want {
			want = append(want, filepath.Join(dir, rel))
		}
		if diff := cmp.Diff(want, watched(w)); diff != "" {
			t.Errorf("%s: watched directories mismatch (-want +got):\n%s", step.name, diff)
		}
	}
	if w.incomplete {
		t.Error("the watcher says that it does not see everything")
	}
}

// watched returns the directories that are watched, sorted.
func watched(w *watcher) []string {
	if w.notify == nil {
		return nil
	}
	return slices.Sorted(slices.Values(w.notify.WatchList()))
}
