package app

import (
	"context"
	"strconv"
	"strings"

	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"sluice/internal/config"
)

// RestartError says that a new daemon is to take this one's place, at once and
// with the same command line. The rules stay, so no connection is lost.
type RestartError struct{ Changes []config.Change }

// Error names what changed.
func (e *RestartError) Error() string {
	return "the configuration changed in what needs a restart: " + sentence(e.Changes)
}

// reload takes over a new configuration as far as a running daemon can. If
// something needs a new daemon, this one ends with a [RestartError].
func (s *ProxyServer) reload(ctx context.Context, r Reload, ended chan<- error) {
	if len(r.Restart) > 0 {
		select {
		case ended <- &RestartError{r.Restart}:
		default: // it ends already
		}
		return
	}
	p := s.plan
	p.config = r.Config
	rules, err := p.rules(ctx, s.families)
	if err != nil {
		klog.FromContext(ctx).Error(err, "New configuration is not taken over")
		return
	}
	c := r.Config
	if _, err := logs.GlogSetter(strconv.Itoa(int(c.Object.Logging.Verbosity))); err != nil {
		klog.FromContext(ctx).Error(err, "Log level stays as it is")
	}
	s.health.SetTimeout(patience(c))
	s.healthServer.SetAddress(c.HealthzBindAddress)
	s.metricsServer.SetAddress(c.MetricsBindAddress)
	s.configure(rules, c.MinSyncPeriod, max(c.SyncPeriod, fullSyncPeriod))
	s.configz.set(c.Object)
	klog.FromContext(ctx).Info("Took over the new configuration", "changed", sentence(r.Live))
}

// sentence lists changes.
func sentence(changes []config.Change) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, ", ")
}
