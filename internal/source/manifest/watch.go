package manifest

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

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

type folderSource Settings

// run is one Run of the source.
type run struct {
	folder   *folder
	watcher  *watcher
	delivery delivery
	reporter reporter
	changed  bool // there were events: files that look unchanged may be changed
	missing  bool // the folder could not be read
}

// Run implements [source.Source]. It returns an error only when the folder
// cannot be read at the start; later that is a problem among others.
func (s folderSource) Run(ctx context.Context, h source.Handler) error {
	dir, err := filepath.Abs(s.Dir)
	r := &run{
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
	r.delivery.update(entries)
}
