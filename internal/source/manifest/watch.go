package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"sluice/internal/source"
)

const (
	// quiet is how long nothing must happen before changed files are read, so
	// that several writes to a file, or several files, are one reading.
	quiet = 5 * time.Millisecond
	// patience is how long a reading is put off at most.
	patience = 50 * time.Millisecond
	// rescan is how often all files are looked at without an event: links to
	// files elsewhere and network file systems send none.
	rescan = 10 * time.Second
	// poll takes the place of rescan while the folder cannot be watched.
	poll = time.Second
)

// Source reads and watches a folder.
type Source struct {
	Dir      string // it must exist when Run begins
	NodeName string // of the only Node that is delivered

	// Report takes the problems that there are after each reading, sorted; notes
	// are none. Nil: nobody wants them.
	Report func([]Problem)
}

// run is one Run of the source.
type run struct {
	folder   *folder
	watcher  *watcher
	delivery delivery
	reporter reporter
	report   func([]Problem)
	changed  bool // there were events: files that look unchanged may be changed
	missing  bool // the folder could not be read
}

// Run implements [source.Source]. It returns an error only when the folder
// cannot be read at the start; later that is a problem among others.
func (s Source) Run(ctx context.Context, h source.Handler) error {
	dir, err := filepath.Abs(s.Dir)
	r := &run{
		folder:   newFolder(dir),
		watcher:  &watcher{log: klog.FromContext(ctx), dir: dir},
		delivery: newDelivery(s.NodeName, h),
		reporter: reporter{log: klog.FromContext(ctx)},
		report:   s.Report,
	}
	defer r.watcher.close()
	if err == nil {
		err = r.read()
	}
	if err != nil {
		return fmt.Errorf("read manifest folder %s: %w", s.Dir, bare(err))
	}
	r.publish()
	r.delivery.synced()
	for r.wait(ctx) {
		if err := r.read(); err != nil {
			r.folder.unreadable = []Problem{{
				File:   s.Dir,
				Reason: fmt.Sprintf("the folder cannot be read: %v; its last objects stay in force", bare(err)),
			}}
		}
		r.publish()
	}
	return nil
}

// wait returns true when it is time to look at the folder again, and false
// when ctx has ended.
func (r *run) wait(ctx context.Context) bool {
	pause := rescan
	switch {
	case r.folder.pending:
		pause = grace
	case r.missing || r.watcher.blind:
		pause = poll
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var first time.Time // event
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return ctx.Err() == nil
		case event := <-r.watcher.events:
			if !r.watcher.matters(event) {
				continue
			}
		case err := <-r.watcher.errors:
			klog.FromContext(ctx).V(2).Info("Manifest folder events were lost", "folder", r.folder.dir, "err", err)
		}
		r.changed = true
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(min(quiet, patience-time.Since(first)))
	}
}

// read looks at the folder. When it cannot be read everything stays as it is.
func (r *run) read() error {
	for {
		err := r.folder.scan(r.changed)
		if r.missing = err != nil; r.missing {
			// Whatever comes back under the old names is not what is watched now.
			r.watcher.dirs = nil
			return err
		}
		if r.changed = r.watcher.follow(r.folder.dirs); !r.changed {
			return nil
		}
	}
}

// publish delivers what is in force and reports what is wrong.
func (r *run) publish() {
	entries, problems := r.folder.merged()
	r.reporter.update(problems)
	if r.report != nil {
		r.report(slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return p.Note }))
	}
	r.delivery.update(entries)
}

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
