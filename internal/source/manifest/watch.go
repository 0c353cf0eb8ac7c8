package manifest

import (
	"context"
	"fmt"
	"path/filepath"
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

type folderSource struct{ settings Settings }

// run is one Run of the source.
type run struct {
	name     string // of the folder, as it was given
	folder   *folder
	watcher  *watcher
	delivery delivery
	reporter reporter
	dirty    map[string]bool // full paths of files that an event named
	missing  bool            // the folder could not be read
}

// Run implements [source.Source]. It returns an error only when the folder
// cannot be read at the start; later that is a problem among others.
func (s *folderSource) Run(ctx context.Context, h source.Handler) error {
	dir, err := filepath.Abs(s.settings.Dir)
	if err != nil {
		return fmt.Errorf("read manifest folder %s: %w", s.settings.Dir, err)
	}
	r := &run{
		name:     s.settings.Dir,
		folder:   newFolder(dir),
		watcher:  &watcher{log: klog.FromContext(ctx), dir: dir},
		delivery: newDelivery(s.settings.NodeName, h),
		reporter: reporter{log: klog.FromContext(ctx)},
		dirty:    map[string]bool{},
	}
	defer r.watcher.close()
	if err := r.read(); err != nil {
		return fmt.Errorf("read manifest folder %s: %w", s.settings.Dir, bare(err))
	}
	r.publish()
	r.delivery.synced()
	for r.wait(ctx) {
		if err := r.read(); err != nil {
			r.folder.unreadable = []Problem{{
				File:   r.name,
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
	var late <-chan time.Time
	var notify fsnotify.Watcher // its channels are nil
	if r.watcher.notify != nil {
		notify = *r.watcher.notify
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return ctx.Err() == nil
		case <-late:
			return true
		case event := <-notify.Events:
			if !r.watcher.matters(event) {
				continue
			}
			r.dirty[event.Name] = true
		case err := <-notify.Errors:
			klog.FromContext(ctx).V(2).Info("Manifest folder events were lost", "folder", r.name, "err", err)
			r.markAll()
		}
		timer.Reset(quiet)
		if late == nil {
			late = time.After(patience)
		}
	}
}

// markAll has all files read again: any may have changed.
func (r *run) markAll() {
	for rel := range r.folder.files {
		r.dirty[r.folder.full(rel)] = true
	}
}

// read looks at the folder. When it cannot be read everything stays as it is.
func (r *run) read() error {
	for {
		err := r.folder.scan(r.dirty)
		clear(r.dirty)
		if r.missing = err != nil; r.missing {
			// Whatever comes back under the old names is not what is watched now.
			r.watcher.dirs = nil
			return err
		}
		if !r.watcher.follow(r.folder.dirs) {
			return nil
		}
		r.markAll()
	}
}

// publish delivers what is in force and reports what is wrong.
func (r *run) publish() {
	entries, problems := r.folder.merged()
	r.reporter.update(problems)
	r.delivery.update(entries)
}
