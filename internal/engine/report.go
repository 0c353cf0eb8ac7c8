package engine

import (
	"context"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

const (
	// objectLines is the burst of log lines about objects; after it, one line per
	// second is logged. Users who may write objects must not be able to flood the log.
	objectLines = 100

	// hiddenInterval is how often the log says that lines were hidden.
	hiddenInterval = 10 * time.Second
)

// objectLog logs problems with objects, at a limited rate.
type objectLog struct{ lines, hidden *rate.Limiter }

func newObjectLog() objectLog {
	return objectLog{rate.NewLimiter(rate.Every(time.Second), objectLines), rate.NewLimiter(rate.Every(hiddenInterval), 1)}
}

// report calls write, which calls line for a logger for each line that it logs. Lines
// above the limit are logged at verbosity 4 only.
func (l objectLog) report(ctx context.Context, write func(line func() klog.Logger)) {
	logger, hidden := klog.FromContext(ctx), 0
	write(func() klog.Logger {
		if l.lines.Allow() {
			return logger
		}
		hidden++
		return logger.V(4)
	})
	if hidden > 0 && l.hidden.Allow() {
		logger.Info("Too many lines about objects, verbosity 4 shows the hidden ones", "hidden", hidden)
	}
}

// rewrittenRows is how many repaired rows a log line names.
const rewrittenRows = 5

// reportFailure logs that a sync failed. The runner retries it.
func reportFailure(ctx context.Context, err error, retryIn time.Duration) {
	klog.FromContext(ctx).Error(err, "Sync failed and is retried, rules that it did not replace stay in force", "retryIn", retryIn)
}

func report(ctx context.Context, w *work, done *proxy.Delta) {
	logger := klog.FromContext(ctx)
	elapsed := time.Since(w.start)
	if w.first {
		logger.Info("First sync done", "rows", len(w.state.Rows), "elapsed", elapsed)
	}
	if !w.full && done.Empty() {
		return
	}
	logger.V(2).Info("Synced", "full", w.full, "changed", len(done.Upserts), "removed", len(done.Removes),
		"node", done.Node != nil, "serviceCIDRs", done.CIDRs != nil, "rows", len(w.state.Rows), "elapsed", elapsed)
	if v := logger.V(4); v.Enabled() {
		for _, u := range done.Upserts {
			v.Info("Wrote service port", "servicePort", u.New.Key, "new", u.Old == nil, "row", u.New)
		}
		for _, r := range done.Removes {
			v.Info("Removed service port", "servicePort", r.Key)
		}
	}
}

// reportRewritten logs what a full sync had to write although no event changed it.
func reportRewritten(ctx context.Context, w *work, r proxy.Rewritten) {
	var rows []string
	for _, k := range r.Rows {
		if _, changed := slices.BinarySearchFunc(w.changed.Rows, k, proxy.ComparePortKeys); !changed {
			rows = append(rows, k.String())
		}
	}
	if len(rows) > 0 || r.Objects > 0 && w.changed.Empty() {
		klog.FromContext(ctx).Info("Repaired kernel objects that were not as we wrote them", "objects", r.Objects,
			"servicePorts", rows[:min(len(rows), rewrittenRows)], "more", max(0, len(rows)-rewrittenRows))
	}
}

// refusals logs the rows that the kernel began or ceased to refuse.
func (l objectLog) refusals(ctx context.Context, w *work, rows []RowStatus) {
	l.report(ctx, func(line func() klog.Logger) {
		for _, r := range rows {
			switch {
			case r.Key == (proxy.PortKey{}) && r.Refused != "":
				line().Info("Kernel refuses to remove what no service port needs, removing it is retried", "reason", r.Refused)
			case r.Key == (proxy.PortKey{}):
				line().Info("What no service port needs is removed")
			case r.Refused != "":
				line().Info("Kernel refuses service port, other service ports are not affected", "servicePort", r.Key, "reason", r.Refused)
			case w.state.Rows[r.Key] != nil: // a row that was removed is not logged as accepted
				line().Info("Service port is accepted again", "servicePort", r.Key)
			}
		}
	})
}

// problems logs the problems that are new and those that no longer exist.
func (l objectLog) problems(ctx context.Context, found, resolved []resolve.Problem) {
	l.report(ctx, func(line func() klog.Logger) {
		for _, p := range found {
			line().Info("Object has a problem", "object", p.Object, "field", p.Field, "reason", p.Reason)
		}
		for _, p := range resolved {
			line().Info("Object problem is resolved", "object", p.Object, "field", p.Field)
		}
	})
}
