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
	// debounce is how long no event must occur before changed files are read, so that
	// several writes, to one file or to several, are read together.
	debounce = 5 * time.Millisecond
	// maxDebounce is how long reading is delayed at most.
	maxDebounce = 50 * time.Millisecond
	// rescanInterval is how often the folder is scanned without an event: network file
	// systems, and files elsewhere that links refer to, send none.
	rescanInterval = 10 * time.Second
	// pollInterval replaces rescanInterval while the folder cannot be watched.
	pollInterval = time.Second
)

// Source reads and watches a folder.
type Source struct {
	Dir      string // must exist when Run is called
	NodeName string // the name of the only Node that is delivered

	// Report is called after each scan with all problems except notes, sorted. It may
	// be nil.
	Report func([]Problem)

	// OtherNodes is called after each scan with the names of the Nodes if none of them
	// has NodeName, and with nil otherwise. It may be nil.
	OtherNodes func(names []string)
}

// run is the state of one call of Run.
type run struct {
	Source
	folder   *folder
	watcher  *watcher
	delivery delivery
	reporter reporter
	changed  bool // there were events, so files with the same size and time may have changed
	missing  bool // the folder could not be read
}

// Run implements [source.Source]. It returns an error only if the folder cannot be read
// at the start; later, that is a Problem.
func (s Source) Run(ctx context.Context, h source.Handler) error {
	dir, err := filepath.Abs(s.Dir)
	r := &run{
		Source:   s,
		folder:   newFolder(dir),
		watcher:  &watcher{log: klog.FromContext(ctx), dir: dir},
		delivery: newDelivery(s.NodeName, h),
		reporter: reporter{log: klog.FromContext(ctx)},
	}
	defer r.watcher.close()
	if err == nil {
		err = r.read()
	}
	if err != nil {
		return fmt.Errorf("read manifest folder %s: %w", s.Dir, withoutPath(err))
	}
	r.publish()
	r.delivery.synced()
	for r.wait(ctx) {
		if err := r.read(); err != nil {
			r.folder.unreadable = []Problem{{
				File:   s.Dir,
				Reason: fmt.Sprintf("the folder cannot be read: %v; its last objects stay in force", withoutPath(err)),
			}}
		}
		r.publish()
	}
	return nil
}

// wait returns true when the folder has to be scanned again, and false when ctx has
// ended.
func (r *run) wait(ctx context.Context) bool {
	pause := rescanInterval
	switch {
	case r.folder.pending:
		pause = deletionGrace
	case r.missing || r.watcher.incomplete:
		pause = pollInterval
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var firstEvent time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return ctx.Err() == nil
		case event := <-r.watcher.events:
			if !r.watcher.isRelevant(event) {
				continue
			}
		case err := <-r.watcher.errors:
			klog.FromContext(ctx).V(2).Info("Manifest folder events were lost, reading all files", "folder", r.folder.dir, "err", err)
		}
		r.changed = true
		if firstEvent.IsZero() {
			firstEvent = time.Now()
		}
		timer.Reset(min(debounce, maxDebounce-time.Since(firstEvent)))
	}
}

// read scans the folder, and watches the directories that it found. It repeats that if
// something may have changed in between. If the folder cannot be read, it keeps
// everything.
func (r *run) read() error {
	for {
		err := r.folder.scan(r.changed)
		if r.missing = err != nil; r.missing {
			// If the folder is created again, its directories are others than those watched.
			r.watcher.dirs = nil
			return err
		}
		if r.changed = r.watcher.watch(r.folder.dirs); !r.changed {
			return nil
		}
	}
}

// publish delivers the objects in force, and logs and reports problems.
func (r *run) publish() {
	entries, problems := r.folder.merged()
	r.reporter.update(problems)
	if r.Report != nil {
		r.Report(slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return p.Note }))
	}
	if r.OtherNodes != nil {
		r.OtherNodes(otherNodes(entries, r.NodeName))
	}
	r.delivery.update(entries)
}

// otherNodes returns the names of the Nodes, sorted; nil if one of them is ours.
func otherNodes(entries []entry, ours string) (names []string) {
	for _, e := range entries {
		switch {
		case e.id.kind != "Node":
		case e.id.name == ours:
			return nil
		default:
			names = append(names, e.id.name)
		}
	}
	slices.Sort(names)
	return names
}

// watcher watches the directories of a folder, as far as possible.
type watcher struct {
	log        klog.Logger
	dir        string
	notify     *fsnotify.Watcher // nil if it could not be created
	events     <-chan fsnotify.Event
	errors     <-chan error
	dirs       []directory // the directories that are watched; nil if one of them may have been replaced
	incomplete bool        // some directory cannot be watched, so the folder is polled
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close() // It fails only if it is closed already.
	}
}

// watch watches the listed directories, and the parent of the folder, which has the events
// when the folder is removed, created or replaced. It reports whether it started new
// watches: then changes since the directories were listed may have been missed.
func (w *watcher) watch(dirs []directory) bool {
	same := func(a, b directory) bool { return a.path == b.path && os.SameFile(a.info, b.info) }
	if !w.incomplete && slices.EqualFunc(w.dirs, dirs, same) {
		return false
	}
	// Always create a new fsnotify.Watcher: it would be harder to find out which
	// directories the old one still watches after some were moved, replaced or linked.
	w.close()
	*w = watcher{log: w.log, dir: w.dir, dirs: dirs, incomplete: w.incomplete}
	var err error
	if w.notify, err = fsnotify.NewWatcher(); err == nil {
		w.events, w.errors = w.notify.Events, w.notify.Errors
		err = w.notify.Add(filepath.Dir(w.dir))
		for _, d := range dirs {
			if addErr := w.notify.Add(d.path); addErr != nil && !errors.Is(addErr, os.ErrNotExist) {
				err = addErr
			}
		}
	}
	if err != nil && !w.incomplete {
		w.log.Error(err, "Manifest folder cannot be watched, scanning it every second", "folder", w.dir)
	}
	w.incomplete = err != nil
	return !w.incomplete
}

// isRelevant reports whether an event may concern the folder. Events of other files in
// the parent of the folder do not.
func (w *watcher) isRelevant(event fsnotify.Event) bool {
	watched := func(d directory) bool { return d.path == event.Name }
	if event.Has(fsnotify.Remove|fsnotify.Rename) && slices.ContainsFunc(w.dirs, watched) {
		// The next directory of this name is another one, even if it has the same inode
		// number.
		w.dirs = nil
	}
	return event.Name == w.dir || filepath.Dir(event.Name) != filepath.Dir(w.dir)
}
