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
	"sluice/internal/engine"
)

const (
	// readPeriod is how often the configuration file is read, and for how long it
	// must stay the same before it is used: a file that is written in place is
	// written in pieces, and half of it may be valid. Reading takes microseconds,
	// and also detects what file notifications miss: changed symbolic links on the
	// path, as in a ConfigMap volume, and changes in network file systems.
	readPeriod = time.Second
	// restartSpread is the time over which the nodes that share a ConfigMap spread
	// their restarts, because each of them then reads all objects.
	restartSpread = 10 * time.Minute
)

// RestartError asks for a restart of the process with the same command line. The
// rules stay in force, so no connection is lost.
type RestartError struct {
	Changes []config.Change // of the configuration
	Why     string          // if there are none
}

func (e *RestartError) Error() string {
	if e.Why != "" {
		return e.Why
	}
	return "the configuration changed in fields that need a restart: " + describe(e.Changes)
}

func describe(changes []config.Change) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, ", ")
}

// configWatcher applies changes of the configuration file.
type configWatcher struct {
	file     string
	period   time.Duration
	read     func(defaultMode config.ProxyMode) (parsed, error) // parses the file, as at the start
	running  config.Configuration
	apply    func(context.Context, config.Configuration, []config.Change) error
	doubts   *engine.Doubts
	validate func(context.Context, config.Configuration) error // whether a daemon could start with it
	delay    func() time.Duration                              // returns how long to wait before a restart

	candidate  string // the content at the last check
	lastParsed string // the content that was parsed last

	restart *RestartError    // the planned restart, if due is not nil
	due     <-chan time.Time // fires when it is time for the restart
}

// contentOf returns the content of a file after a "=", or why it cannot be read.
func contentOf(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return "=" + string(data) // no error text begins like this
}

// newConfigWatcher returns a watcher of the configuration file, from which running
// was read; the options must name the file. The watcher calls apply with each new
// configuration that a running daemon can adopt, and compares the next one with
// that, whether or not apply succeeded.
func (o *Options) newConfigWatcher(
	running config.Configuration, apply func(context.Context, config.Configuration, []config.Change) error,
) *configWatcher {
	return &configWatcher{
		file: o.ConfigFile, period: readPeriod, read: o.read, running: running, apply: apply, doubts: o.doubts,
		validate: func(ctx context.Context, c config.Configuration) error {
			if _, err := o.plan(c); err != nil {
				return err
			}
			_, _, err := o.probeMode(ctx, c)
			return err
		},
		delay: func() time.Duration { return restartDelay(o.ConfigFile) },
	}
}

// restartDelay returns how long to wait before a restart: a random time if the file
// is in a ConfigMap volume, which all nodes share, otherwise none.
func restartDelay(file string) time.Duration {
	if _, err := os.Readlink(filepath.Join(filepath.Dir(file), "..data")); err != nil {
		return 0
	}
	return rand.N(restartSpread)
}

// Run watches the file until ctx ends, and then returns nil, or until it is time
// to restart, and then returns a [*RestartError].
func (w *configWatcher) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.due:
			if contentOf(w.file) == w.lastParsed {
				return w.restart
			}
			w.due = nil // the file has changed again; that change decides
		case <-time.After(w.period): // not a ticker: two checks must be at least that far apart
			w.check(ctx)
		}
	}
}

// check adopts new content when it is the same in two consecutive checks. It
// reports invalid content once.
func (w *configWatcher) check(ctx context.Context) {
	now := contentOf(w.file)
	if now != w.candidate || now == w.lastParsed {
		w.candidate = now
		return
	}
	p, err := w.read(w.running.Mode)
	if contentOf(w.file) != now {
		return // read may have seen a mix of old and new content
	}
	w.lastParsed = now
	if err == nil {
		err = w.accept(ctx, p)
	}
	if err == nil {
		w.doubts.Clear(engine.ConfigurationRejected, w.file)
		return
	}
	w.due = nil // a restarted daemon could not use the file either
	w.doubts.Set(engine.Doubt{
		Kind: engine.ConfigurationRejected, Object: w.file, Reason: "the new configuration cannot be used, the old one stays in force: " + err.Error(),
		Next: "the file is read again when it changes",
	})
	klog.FromContext(ctx).Error(err, "The new configuration cannot be used, the old one stays in force", "file", w.file)
}

// accept applies a parsed configuration, or plans a restart that will.
func (w *configWatcher) accept(ctx context.Context, p parsed) error {
	changes := config.Changes(&w.running, &p.config)
	restart := slices.DeleteFunc(slices.Clone(changes), func(c config.Change) bool { return c.Live })
	if len(restart) > 0 {
		if err := w.validate(ctx, p.config); err != nil {
			return err
		}
	}
	logger := klog.FromContext(ctx)
	for _, n := range p.notices {
		logger.Info(n.message, n.keysAndValues...)
	}
	switch {
	case len(restart) > 0:
		w.planRestart(ctx, restart)
		return nil
	case w.due != nil:
		w.due = nil
		logger.Info("The configuration no longer needs a restart")
	}
	if len(changes) > 0 {
		w.running = p.config
		return w.apply(ctx, p.config, changes)
	}
	return nil
}

// planRestart sets the time of the restart, unless one is planned already.
func (w *configWatcher) planRestart(ctx context.Context, changes []config.Change) {
	w.restart = &RestartError{Changes: changes}
	if w.due != nil {
		return
	}
	in := w.delay()
	w.due = time.After(in)
	if in > 0 {
		klog.FromContext(ctx).Info("The configuration changed in fields that need a restart, which nodes do at different times",
			"in", in.Round(time.Second), "changed", describe(changes))
	}
}

// reload applies a configuration that differs from the running one only in fields
// that a running daemon can change.
func (s *ProxyServer) reload(ctx context.Context, c config.Configuration, changes []config.Change) error {
	logger := klog.FromContext(ctx)
	p := s.plan
	p.config = c
	rs, err := p.resolveSettings(ctx, s.families)
	if err != nil {
		return err
	}
	if _, err := logs.GlogSetter(strconv.Itoa(int(c.Object.Logging.Verbosity))); err != nil {
		logger.Error(err, "Cannot set the log verbosity, it stays as it is")
	}
	s.health.SetTimeout(healthTimeout(c))
	s.healthServer.SetAddress(c.HealthzBindAddress)
	s.metricsServer.SetAddress(c.MetricsBindAddress)
	s.configure(rs, c.MinSyncPeriod, s.fullSyncPeriod(c))
	s.configz.Store(c.Object)
	logger.Info("Applied the new configuration", "changed", describe(changes))
	return nil
}
