package manifest

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// TestWait checks when the folder is looked at, in fake time and with events
// that the test makes up.
func TestWait(t *testing.T) {
	tests := []struct {
		name    string
		run     func(r *run)
		every   time.Duration // between events; 0: there are none
		event   string
		wanted  time.Duration
		changed bool
	}{
		{name: "nothing happens", wanted: rescanInterval},
		{name: "the folder is missing", run: func(r *run) { r.missing = true }, wanted: pollInterval},
		{name: "the folder is not watched", run: func(r *run) { r.watcher.incomplete = true }, wanted: pollInterval},
		{name: "a file is missing", run: func(r *run) { r.folder.pending = true }, wanted: deletionGrace},
		{
			name: "one event", every: time.Second, event: "/x/dir/a.yaml",
			wanted: time.Second + debounce, changed: true,
		},
		{
			name: "events without end", every: time.Millisecond, event: "/x/dir/a.yaml",
			wanted: time.Millisecond + maxDebounce, changed: true,
		},
		{name: "a neighbour's event", every: time.Second, event: "/x/other", wanted: rescanInterval},
		{
			name: "a ConfigMap's event", every: time.Second, event: "/x/dir/..data",
			wanted: time.Second + debounce, changed: true,
		},
		{
			name: "lost events", every: time.Second,
			wanted: time.Second + debounce, changed: true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				notify := &fsnotify.Watcher{Events: make(chan fsnotify.Event), Errors: make(chan error)}
				r := &run{
					folder:  newFolder("/x/dir"),
					watcher: &watcher{dir: "/x/dir", events: notify.Events, errors: notify.Errors},
				}
				if tt.run != nil {
					tt.run(r)
				}
				if tt.every > 0 {
					go send(ctx, notify, tt.every, tt.event)
				}
				began := time.Now()
				if !r.wait(ctx) {
					t.Error("wait says that the context has ended")
				}
				if took := time.Since(began); took != tt.wanted {
					t.Errorf("wait took %v, want %v", took, tt.wanted)
				}
				if r.changed != tt.changed {
					t.Errorf("files may have changed: %t, want %t", r.changed, tt.changed)
				}
				cancel()
				if r.wait(ctx) {
					t.Error("wait says that it is time to read after the context has ended")
				}
			})
		})
	}
}

// send sends an event, or an error when it has no name, again and again.
func send(ctx context.Context, to *fsnotify.Watcher, every time.Duration, name string) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		events, failures := to.Events, to.Errors
		if name == "" {
			events = nil
		} else {
			failures = nil
		}
		select {
		case <-ctx.Done():
			return
		case events <- fsnotify.Event{Name: filepath.Clean(name), Op: fsnotify.Write}:
		case failures <- errors.New("overflow"):
		}
	}
}
