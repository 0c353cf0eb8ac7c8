package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"sluice/internal/config"
)

const (
	// settle is for how long a file must stay the same before it is read: who
	// writes it in place, or copies it, writes it in pieces, and half a file may
	// be a valid one.
	settle = time.Second
	// pollPeriod is how often the file is looked at without any sign: file
	// systems without notification and directories that are swapped whole give
	// none.
	pollPeriod = time.Minute
	// restartSpread is within which time the nodes of a cluster restart that
	// share a ConfigMap and see its change at once. Each reads all objects then.
	restartSpread = 10 * time.Minute
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
	settle  time.Duration
	read    func(unset config.ProxyMode) (parsed, error) // reads and checks the file as at the start
	running config.Configuration
	apply   func(context.Context, Reload)
	usable  func(context.Context, config.Configuration) error // whether a new daemon could start with it
	delay   func() time.Duration                              // until a restart

	candidate fingerprint // of the content that was there at the last look
	seen      fingerprint // of the content that was last read

	restart Reload           // what is to come of it, while due is not nil
	due     <-chan time.Time // when it is time for the restart
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
	usable := func(ctx context.Context, c config.Configuration) error {
		if _, err := o.plan(c); err != nil {
			return err
		}
		return probeMode(ctx, c)
	}
	delay := func() time.Duration { return restartDelay(o.ConfigFile) }
	return &ConfigWatcher{
		file: o.ConfigFile, settle: settle, read: o.read, running: running, apply: apply, usable: usable, delay: delay,
	}
}

// restartDelay returns how long to wait with a restart. A file that is a node's
// own needs none; that of a volume is every node's.
func restartDelay(file string) time.Duration {
	if _, err := os.Readlink(filepath.Join(filepath.Dir(file), "..data")); err != nil {
		return 0
	}
	return rand.N(restartSpread)
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
		case <-w.due:
			w.due = nil
			w.apply(ctx, w.restart)
			continue
		case <-signs:
		case err := <-faults:
			// Signs may be lost; looking at the file makes up for them.
			klog.FromContext(ctx).V(2).Info("Lost track of the configuration file's directory", "err", err)
		case <-poll.C:
		case <-soon.C:
			waiting = false
			// Watching comes before reading, so that no change falls between.
			w.watch(ctx, notify)
			if settled := w.check(ctx); settled {
				continue
			}
		}
		if !waiting {
			waiting = true
			soon.Reset(w.settle)
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

// check takes over new content once it was the same at two looks, and reports
// whether another look can wait for a sign. What is wrong with it is said once.
func (w *ConfigWatcher) check(ctx context.Context) (settled bool) {
	now := look(w.file)
	if now != w.candidate {
		w.candidate = now
		return now == w.seen
	}
	if now == w.seen {
		return true
	}
	p, err := w.read(w.running.Mode)
	if look(w.file) != now {
		return false // what was read may be half of each
	}
	w.seen = now
	if err == nil {
		err = w.take(ctx, p)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The new configuration is not usable, the old one stays in force", "file", w.file)
	}
	return true
}

// take puts what was read in force, or sees to it that a new daemon does.
func (w *ConfigWatcher) take(ctx context.Context, p parsed) error {
	r := Reload{Config: p.config}
	for _, c := range config.Changes(&w.running, &p.config) {
		if c.Live {
			r.Live = append(r.Live, c)
		} else {
			r.Restart = append(r.Restart, c)
		}
	}
	if len(r.Restart) > 0 {
		if err := w.usable(ctx, p.config); err != nil {
			return err
		}
	}
	logger := klog.FromContext(ctx)
	for _, n := range p.notices {
		logger.Info(n.message, n.facts...)
	}
	switch {
	case len(r.Restart) > 0:
		w.plan(ctx, r)
		return nil
	case w.due != nil:
		w.due = nil
		logger.Info("The configuration needs no restart any more")
	}
	if len(r.Live) > 0 {
		w.running = p.config
		w.apply(ctx, r)
	}
	return nil
}

// plan sets the time for a restart, if there is none yet.
func (w *ConfigWatcher) plan(ctx context.Context, r Reload) {
	w.restart = r
	if w.due != nil {
		return
	}
	in := w.delay()
	w.due = time.After(in)
	if in > 0 {
		klog.FromContext(ctx).Info("The configuration changed in what needs a restart, which each node does at another time",
			"in", in.Round(time.Second), "changed", sentence(r.Restart))
	}
}

// look returns the fingerprint of a file's content.
func look(file string) fingerprint {
	data, err := os.ReadFile(file)
	if err != nil {
		return fingerprint{fault: err.Error()}
	}
	return fingerprint{sum: sha256.Sum256(data)}
}
