package app

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"sluice/internal/config"
)

const (
	// readPeriod is how often the configuration file is read, and for how long
	// it must stay the same: who writes it in place, or copies it, writes it in
	// pieces, and half a file may be a valid one. To read it takes microseconds,
	// and notices what no notification tells of: links on the way to it, as a
	// ConfigMap volume has them, and file systems of others.
	readPeriod = time.Second
	// restartSpread is within which time the nodes of a cluster restart that
	// share a ConfigMap and see its change at once. Each reads all objects then.
	restartSpread = 10 * time.Minute
)

// RestartError says that a new daemon is to take this one's place, at once and
// with the same command line. The rules stay, so no connection is lost.
type RestartError struct{ Changes []config.Change }

func (e *RestartError) Error() string {
	return "the configuration changed in what needs a restart: " + list(e.Changes)
}

func list(changes []config.Change) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, ", ")
}

// configWatcher follows the configuration file.
type configWatcher struct {
	file    string
	period  time.Duration
	read    func(unset config.ProxyMode) (parsed, error) // reads and checks the file as at the start
	running config.Configuration
	apply   func(context.Context, config.Configuration, []config.Change)
	usable  func(context.Context, config.Configuration) error // whether a new daemon could start with it
	delay   func() time.Duration                              // until a restart

	candidate string // the content that was there at the last look
	seen      string // the content that was last parsed

	restart *RestartError    // what is to come of it, while due is not nil
	due     <-chan time.Time // when it is time for the restart
}

// contentOf returns the content of a file, or why there is none.
func contentOf(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return "=" + string(data) // no error begins so
}

// newConfigWatcher returns the watcher of the file that the options name, whose
// content the running configuration was made from; they must name one. It calls
// apply with each new configuration that a running daemon can take over; the
// next one is compared with that, whatever became of it.
func (o *Options) newConfigWatcher(
	running config.Configuration, apply func(context.Context, config.Configuration, []config.Change),
) *configWatcher {
	return &configWatcher{
		file: o.ConfigFile, period: readPeriod, read: o.read, running: running, apply: apply,
		usable: func(ctx context.Context, c config.Configuration) error {
			if _, err := o.plan(c); err != nil {
				return err
			}
			_, _, err := o.probeMode(ctx, c)
			return err
		},
		delay: func() time.Duration { return restartDelay(o.ConfigFile) },
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

// Run follows the file until ctx ends, and then returns nil, or until it is time
// for a new daemon, and then returns a [*RestartError].
func (w *configWatcher) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.due:
			if contentOf(w.file) == w.seen {
				return w.restart
			}
			w.due = nil // What it changed to is looked at first.
		case <-time.After(w.period): // not a ticker: two looks must be that far apart
			w.check(ctx)
		}
	}
}

// check takes over new content once it was the same at two looks. What is wrong
// with it is said once.
func (w *configWatcher) check(ctx context.Context) {
	now := contentOf(w.file)
	if now != w.candidate || now == w.seen {
		w.candidate = now
		return
	}
	p, err := w.read(w.running.Mode)
	if contentOf(w.file) != now {
		return // what was read may be half of each
	}
	w.seen = now
	if err == nil {
		err = w.take(ctx, p)
	}
	if err != nil {
		w.due = nil // A new daemon could not use it either.
		klog.FromContext(ctx).Error(err, "The new configuration is not usable, the old one stays in force", "file", w.file)
	}
}

// take puts what was read in force, or sees to it that a new daemon does.
func (w *configWatcher) take(ctx context.Context, p parsed) error {
	changes := config.Changes(&w.running, &p.config)
	restart := slices.DeleteFunc(slices.Clone(changes), func(c config.Change) bool { return c.Live })
	if len(restart) > 0 {
		if err := w.usable(ctx, p.config); err != nil {
			return err
		}
	}
	logger := klog.FromContext(ctx)
	for _, n := range p.notices {
		logger.Info(n.message, n.facts...)
	}
	switch {
	case len(restart) > 0:
		w.planRestart(ctx, restart)
		return nil
	case w.due != nil:
		w.due = nil
		logger.Info("The configuration needs no restart any more")
	}
	if len(changes) > 0 {
		w.running = p.config
		w.apply(ctx, p.config, changes)
	}
	return nil
}

// planRestart sets the time for a restart, if there is none yet.
func (w *configWatcher) planRestart(ctx context.Context, changes []config.Change) {
	w.restart = &RestartError{changes}
	if w.due != nil {
		return
	}
	in := w.delay()
	w.due = time.After(in)
	if in > 0 {
		klog.FromContext(ctx).Info("The configuration changed in what needs a restart, which each node does at another time",
			"in", in.Round(time.Second), "changed", list(changes))
	}
}

// reload takes over a configuration that differs only in what a running daemon
// can change.
func (s *ProxyServer) reload(ctx context.Context, c config.Configuration, changes []config.Change) {
	logger := klog.FromContext(ctx)
	p := s.plan
	p.config = c
	rules, err := p.rules(ctx, s.families)
	if err != nil {
		logger.Error(err, "New configuration is not taken over")
		return
	}
	if _, err := logs.GlogSetter(strconv.Itoa(int(c.Object.Logging.Verbosity))); err != nil {
		logger.Error(err, "Log level stays as it is")
	}
	s.health.SetTimeout(healthTimeout(c))
	s.healthServer.SetAddress(c.HealthzBindAddress)
	s.metricsServer.SetAddress(c.MetricsBindAddress)
	s.configure(rules, c.MinSyncPeriod, s.fullSyncPeriod(c))
	s.configz.Store(c.Object)
	logger.Info("Took over the new configuration", "changed", list(changes))
}
