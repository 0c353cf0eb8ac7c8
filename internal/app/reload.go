package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"sluice/internal/config"
)

const (
	// settle is how long after a first sign of change the file is read, so that
	// one save is one change.
	settle = 200 * time.Millisecond
	// pollPeriod is how often the file is read without any sign: file systems
	// without notification and directories that are swapped whole give none.
	pollPeriod = time.Minute
)

// Reload is a new configuration that is valid and differs from the last one.
type Reload struct {
	Config  config.Configuration
	Live    []config.Change // what a running daemon can take over
	Restart []config.Change // what only a new one can
}

// ConfigWatcher follows the configuration file. It watches directories, not
// the file: whoever replaces a file, or a link on the way to it as a ConfigMap
// volume does, leaves a watch on the old one behind.
type ConfigWatcher struct {
	file    string
	read    func(unset config.ProxyMode) (told, error) // reads and checks the file as at the start
	running config.Configuration
	apply   func(context.Context, Reload)
	usable  func(config.Configuration) error // whether a new daemon could start with it

	seen fingerprint // of the content that was last looked at
}

// fingerprint tells contents apart, and those from none.
type fingerprint struct {
	sum   [sha256.Size]byte
	fault string // why there is no content
}

// NewConfigWatcher returns the watcher of the file that the options name, whose
// content the running configuration was made from; they must name one. The
// callback is called with each new configuration, by one goroutine. The next one
// is compared with it, whatever became of it.
func (o *Options) NewConfigWatcher(running config.Configuration, apply func(context.Context, Reload)) *ConfigWatcher {
	usable := func(c config.Configuration) error {
		_, err := o.plan(c)
		return err
	}
	return &ConfigWatcher{file: o.ConfigFile, read: o.read, running: running, apply: apply, usable: usable}
}

// Run follows the file until ctx ends, and then returns nil.
func (w *ConfigWatcher) Run(ctx context.Context) error {
	var signs <-chan fsnotify.Event
	var faults <-chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot watch the configuration file, reading it now and then",
			"file", w.file, "every", pollPeriod)
	} else {
		defer func() { _ = notify.Close() }()
		signs, faults = notify.Events, notify.Errors
	}
	poll := time.NewTicker(pollPeriod)
	defer poll.Stop()
	soon := time.NewTimer(0) // The file may have changed since the daemon read it.
	defer soon.Stop()
	waiting := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signs:
		case err := <-faults:
			// Signs may be lost; looking at the file makes up for them.
			klog.FromContext(ctx).V(2).Info("Lost track of the configuration file's directory", "err", err)
		case <-poll.C:
		case <-soon.C:
			waiting = false
			// Watching comes before reading, so that no change falls between.
			w.watch(ctx, notify)
			w.check(ctx)
			continue
		}
		if !waiting {
			waiting = true
			soon.Reset(settle)
		}
	}
}

// watch watches the directory that names the file, and the one that has it. A
// directory that is watched already stays so.
func (w *ConfigWatcher) watch(ctx context.Context, notify *fsnotify.Watcher) {
	if notify == nil {
		return
	}
	dirs := []string{filepath.Dir(w.file)}
	if target, err := filepath.EvalSymlinks(w.file); err == nil {
		dirs = append(dirs, filepath.Dir(target))
	}
	for _, dir := range dirs {
		if err := notify.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).V(2).Info("Cannot watch a directory of the configuration file", "directory", dir, "err", err)
		}
	}
}

// check takes over new content. What is wrong with it is said once.
func (w *ConfigWatcher) check(ctx context.Context) {
	now := look(w.file)
	if now == w.seen {
		return
	}
	w.seen = now
	logger := klog.FromContext(ctx)
	t, err := w.read(w.running.Mode)
	if err != nil {
		logger.Error(err, "The new configuration is not usable, the old one stays in force", "file", w.file)
		return
	}
	r := Reload{Config: t.config}
	for _, c := range config.Changes(&w.running, &t.config) {
		if c.Live {
			r.Live = append(r.Live, c)
		} else {
			r.Restart = append(r.Restart, c)
		}
	}
	if len(r.Live)+len(r.Restart) == 0 {
		return
	}
	if slices.ContainsFunc(r.Restart, func(c config.Change) bool { return c.Field == "clientConnection" }) {
		err = w.usable(t.config)
	}
	if err != nil {
		logger.Error(err, "The new configuration is not usable, the old one stays in force", "file", w.file)
		return
	}
	for _, n := range t.notices {
		logger.Info(n.message, n.facts...)
	}
	w.running = t.config
	w.apply(ctx, r)
}

// look returns the fingerprint of a file's content.
func look(file string) fingerprint {
	data, err := os.ReadFile(file)
	if err != nil {
		return fingerprint{fault: err.Error()}
	}
	return fingerprint{sum: sha256.Sum256(data)}
}
