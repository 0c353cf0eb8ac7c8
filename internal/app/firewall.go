package app

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/dataplane/mode"
	"sluice/internal/engine"
)

const (
	// firewallPeriod is how often the rules of the host are looked at. That is one request
	// to the kernel while they have not changed.
	firewallPeriod = 5 * time.Second
	// firewallRest is the minimum time between two looks, as a multiple of the time that one
	// takes: a change of ours looks like one of the host, and there may be many.
	firewallRest = 100
)

// firewallWatcher watches whether the host comes to need another mode than the one that
// runs: a firewall or Docker may start after the daemon. If the daemon has chosen its mode
// itself, it changes to the other; otherwise, or if it cannot, that is a doubt.
type firewallWatcher struct {
	running, needed config.ProxyMode
	chosen          bool // no mode is set
	look            func(context.Context) (mode.Need, error)
	probe           func(context.Context) error // whether the needed mode can run
	doubts          *engine.Doubts

	need   mode.Need // at the last look
	failed string    // the error of the last look
}

// watchesFirewall returns the watcher; nil if no host needs another mode than the one that
// runs.
func (s *ProxyServer) watchesFirewall() *firewallWatcher {
	modes := dataplane.Modes()
	i := slices.IndexFunc(modes, func(m dataplane.Mode) bool { return m.Needs != nil })
	// Mode userspace forwards no packets.
	if i < 0 || slices.Contains([]config.ProxyMode{modes[i].Name, config.Userspace}, s.mode.Name) {
		return nil
	}
	settings := s.plan.options.settingsOf(s.plan.config)
	settings.Families = s.families
	return &firewallWatcher{
		running: s.mode.Name, needed: modes[i].Name, chosen: s.plan.chosen, look: modes[i].Needs(settings),
		probe: func(ctx context.Context) error {
			_, err := modes[i].Probe(ctx, settings)
			return err
		},
		doubts: s.plan.options.doubts,
	}
}

// Run watches until ctx ends, and then returns nil, or until the daemon must restart in
// another mode, and then returns a [*RestartError]. Like any change of the mode, that breaks
// no connection.
func (w *firewallWatcher) Run(ctx context.Context) error {
	for {
		began := time.Now()
		if err := w.check(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(firewallPeriod, firewallRest*time.Since(began))):
		}
	}
}

func (w *firewallWatcher) check(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	need, err := w.look(ctx)
	if err != nil {
		if ctx.Err() == nil && err.Error() != w.failed {
			w.failed = err.Error()
			logger.Error(err, "Cannot determine whether the host requires another mode", "mode", w.needed)
		}
		return nil
	}
	if w.failed = ""; need == w.need {
		return nil
	}
	w.need = need
	kind, none := engine.FirewallMayDrop, engine.FirewallDrops
	if need.Certain {
		kind, none = none, kind
	}
	w.doubts.Clear(none, "")
	next := "set mode " + string(w.needed) + ", or make the host's rules accept this traffic"
	switch {
	case need.Why == "":
		w.doubts.Clear(kind, "")
		logger.Info("The host does not require another mode any more")
		return nil
	case w.chosen:
		if err = w.probe(ctx); err == nil {
			return &RestartError{Why: "no proxy mode is set, and the host now requires mode " + string(w.needed) + ": " + need.Why}
		}
		next = "mode " + string(w.needed) + " cannot run here: " + oneLine(err) + "; use the image with the iptables programs, or make the host's rules accept this traffic"
	case !need.Certain:
		w.doubts.Clear(kind, "")
		logger.Info("The host's rules may drop traffic of Services in this mode", "mode", w.running, "because", need.Why)
		return nil
	}
	w.doubts.Set(engine.Doubt{Kind: kind, Reason: "the host's rules drop traffic that mode " + string(w.running) + " cannot keep alive: " + need.Why, Next: next})
	logger.Error(err, "The host's rules drop traffic of Services in this mode", "mode", w.running, "because", need.Why, "todo", next)
	return nil
}
