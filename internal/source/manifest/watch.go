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
	delivery *delivery
	reporter *reporter
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
		watcher:  openWatcher(klog.FromContext(ctx), dir),
		delivery: newDelivery(s.settings.NodeName, h),
		reporter: s.reporter(ctx),
		dirty:    map[string]bool{},
	}
	defer r.watcher.close()
	if err := r.folder.scan(nil, r.watcher.enter); err != nil {
		return fmt.Errorf("read manifest folder %s: %w", s.settings.Dir, bare(err))
	}
	r.publish(ctx)
	if ctx.Err() == nil {
		r.delivery.synced()
	}
	for r.wait(ctx) {
		r.read()
		r.publish(ctx)
	}
	return nil
}

// reporter returns the reporter that the settings ask for.
func (s *folderSource) reporter(ctx context.Context) *reporter {
	log := klog.FromContext(ctx)
	out := &reporter{appeared: s.settings.Report, mended: s.settings.Mended}
	if out.appeared == nil {
		out.appeared = func(p Problem) {
			if p.Note {
				log.Info("Manifest note", "problem", p.String())
			} else {
				log.Error(nil, "Manifest problem", "problem", p.String())
			}
		}
	}
	if out.mended == nil {
		out.mended = func(p Problem) { log.Info("Manifest mended", "problem", p.String()) }
	}
	return out
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
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-late:
			return true
		case event := <-r.watcher.events():
			if !r.watcher.matters(event.Name) {
				continue
			}
			if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
				r.watcher.gone(event.Name)
			}
			r.dirty[event.Name] = true
		case err := <-r.watcher.errors():
			// Events were lost, so any file may have changed.
			klog.FromContext(ctx).V(2).Info("Manifest folder events were lost", "folder", r.name, "err", err)
			for rel := range r.folder.files {
				r.dirty[filepath.Join(r.folder.dir, filepath.FromSlash(rel))] = true
			}
		}
		timer.Reset(quiet)
		if late == nil {
			late = time.After(patience)
		}
	}
}

// read looks at the folder. When it cannot be read everything stays as it is.
func (r *run) read() {
	err := r.folder.scan(r.dirty, r.watcher.enter)
	clear(r.dirty)
	r.missing = err != nil
	if err == nil {
		r.watcher.prune()
	} else {
		// Whatever comes back under the old names is not what is watched now.
		r.watcher.gone(r.folder.dir)
		r.folder.troubles = []Problem{{
			File:   r.name,
			Reason: fmt.Sprintf("the folder cannot be read: %v; its last objects stay in force", bare(err)),
		}}
	}
}

// publish delivers what is in force and reports what is wrong.
func (r *run) publish(ctx context.Context) {
	entries, problems := r.folder.merged()
	r.reporter.update(problems)
	r.delivery.update(ctx, entries)
}
