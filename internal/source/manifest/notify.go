package manifest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// watcher turns file system events into reasons to read. Without one the
// folder is polled.
type watcher struct {
	log    klog.Logger
	dir    string
	notify *fsnotify.Watcher // nil: there is none to be had
	dirs   map[string]inode  // what is watched
	now    map[string]bool   // directories that the scan has entered
	blind  bool              // something is not watched
	told   bool              // and that has been said
}

func openWatcher(log klog.Logger, dir string) *watcher {
	w := &watcher{log: log, dir: dir, dirs: map[string]inode{}, now: map[string]bool{}}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.unwatched(err)
		return w
	}
	w.notify = notify
	return w
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close() // It only fails when closed twice.
	}
}

// events returns the channel of events, nil without a watcher.
func (w *watcher) events() <-chan fsnotify.Event {
	if w.notify == nil {
		return nil
	}
	return w.notify.Events
}

// errors returns the channel of errors, nil without a watcher.
func (w *watcher) errors() <-chan error {
	if w.notify == nil {
		return nil
	}
	return w.notify.Errors
}

// enter watches a directory that a scan is about to list. The folder itself
// comes first, and its parent with it: that one tells when the folder goes,
// returns or is another.
func (w *watcher) enter(dir string, id inode) {
	if w.notify == nil {
		return
	}
	if dir == w.dir {
		w.blind = false
		clear(w.now)
		parent := filepath.Dir(w.dir)
		if info, err := os.Stat(parent); err == nil {
			w.add(parent, inodeOf(info))
		}
	}
	w.add(dir, id)
}

func (w *watcher) add(dir string, id inode) {
	w.now[dir] = true
	if was, known := w.dirs[dir]; known {
		if was == id {
			return
		}
		w.drop(dir)
	}
	switch err := w.notify.Add(dir); {
	case err == nil:
		w.dirs[dir] = id
	case !errors.Is(err, os.ErrNotExist):
		w.unwatched(err)
	}
}

// unwatched says once that events will be missed.
func (w *watcher) unwatched(err error) {
	w.blind = true
	if !w.told {
		w.told = true
		w.log.Error(err, "Manifest folder cannot be watched and is read every second", "folder", w.dir)
	}
}

// prune ends the watches of directories that the last scan did not enter.
func (w *watcher) prune() {
	for dir := range w.dirs {
		if !w.now[dir] {
			w.drop(dir)
		}
	}
	w.told = w.blind
}

// gone ends the watches at and below a path: what comes next under that name
// may be another directory, even one with the same inode number.
func (w *watcher) gone(name string) {
	for dir := range w.dirs {
		if dir == name || strings.HasPrefix(dir, name+string(filepath.Separator)) {
			w.drop(dir)
		}
	}
}

func (w *watcher) drop(dir string) {
	delete(w.dirs, dir)
	// A directory that is gone took its watch with it.
	_ = w.notify.Remove(dir)
}

// matters says whether an event can change what a reading finds. Of the
// parent's other children and of editors' temporary files we want to know
// nothing; names with two dots are how ConfigMap volumes change.
func (w *watcher) matters(name string) bool {
	parent, base := filepath.Split(name)
	switch {
	case name == w.dir:
		return true
	case filepath.Clean(parent) == filepath.Dir(w.dir):
		return false
	case strings.HasPrefix(base, ".."):
		return true
	case strings.HasPrefix(base, "."), strings.HasSuffix(base, "~"),
		strings.HasSuffix(base, ".swp"), strings.HasSuffix(base, ".tmp"):
		return false
	}
	return true
}
