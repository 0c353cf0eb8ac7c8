package manifest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// watcher turns file system events into reasons to read. Without one the
// folder is polled.
type watcher struct {
	log    klog.Logger
	dir    string
	notify *fsnotify.Watcher // nil: there is none to be had
	events <-chan fsnotify.Event
	errors <-chan error
	dirs   []directory // what is watched, if all of it still is
	blind  bool        // something is not watched
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close() // It only fails when closed twice.
	}
}

// follow watches the directories that were listed, the folder first, and its
// parent: that one has the events when the folder goes, returns or is another. It
// reports whether something new is watched: then changes may have been missed
// since it was listed.
func (w *watcher) follow(dirs []directory) bool {
	same := func(a, b directory) bool { return a.path == b.path && os.SameFile(a.info, b.info) }
	if !w.blind && slices.EqualFunc(w.dirs, dirs, same) {
		return false
	}
	// A new watcher for another set of directories: to find out what the old one
	// still has of directories that were moved, replaced or linked is harder.
	w.close()
	*w = watcher{log: w.log, dir: w.dir, dirs: dirs, blind: w.blind}
	var err error
	if w.notify, err = fsnotify.NewWatcher(); err == nil {
		w.events, w.errors = w.notify.Events, w.notify.Errors
		err = w.notify.Add(filepath.Dir(w.dir))
		for _, d := range dirs {
			if failed := w.notify.Add(d.path); failed != nil && !errors.Is(failed, os.ErrNotExist) {
				err = failed
			}
		}
	}
	if err != nil && !w.blind {
		w.log.Error(err, "Manifest folder cannot be watched and is read every second", "folder", w.dir)
	}
	w.blind = err != nil
	return !w.blind
}

// matters says whether an event can change what a reading finds, which those of
// the parent's other children cannot.
func (w *watcher) matters(event fsnotify.Event) bool {
	gone := func(d directory) bool { return d.path == event.Name }
	if event.Has(fsnotify.Remove|fsnotify.Rename) && slices.ContainsFunc(w.dirs, gone) {
		// What comes next under this name may be another directory, even one with
		// the same inode number.
		w.dirs = nil
	}
	return event.Name == w.dir || filepath.Dir(event.Name) != filepath.Dir(w.dir)
}
