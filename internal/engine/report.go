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

// objectLines is how many lines about objects the log gets at once, and then one each
// second. Whoever writes objects decides how much there is to say, and must not decide
// how long the log is.
const objectLines = 100

// moreEvery is how often it says that there is more.
const moreEvery = 10 * time.Second

// objectLog is the log of what is wrong with objects.
type objectLog struct{ lines, more *rate.Limiter }

func newObjectLog() objectLog {
	return objectLog{rate.NewLimiter(rate.Every(time.Second), objectLines), rate.NewLimiter(rate.Every(moreEvery), 1)}
}

// report has lines written, each to the logger that it is given.
func (l objectLog) report(ctx context.Context, write func(line func() klog.Logger)) {
	logger, hidden := klog.FromContext(ctx), 0
	write(func() klog.Logger {
		if l.lines.Allow() {
			return logger
		}
		hidden++
		return logger.V(4)
	})
	if hidden > 0 && l.more.Allow() {
		logger.Info("More changed about objects than is shown, verbosity 4 shows all", "hidden", hidden)
	}
}

// rewrittenRows is how many rows are named that had to be written again.
const rewrittenRows = 5

// reportFailure says that a sync failed. The runner tries again by itself.
func reportFailure(ctx context.Context, err error, retryIn time.Duration) {
	klog.FromContext(ctx).Error(err, "Sync did not go through, what it did not replace stays in force, will try again", "retryIn", retryIn)
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

// reportRewritten names the rows that a full sync wrote although nothing about them
// had changed.
func reportRewritten(ctx context.Context, w *work, r proxy.Rewritten) {
	var rows []string
	for _, k := range r.Rows {
		if _, changed := slices.BinarySearchFunc(w.changed.Rows, k, proxy.ComparePortKeys); !changed {
			rows = append(rows, k.String())
		}
	}
	if len(rows) > 0 || r.Objects > 0 && w.changed.Empty() {
		klog.FromContext(ctx).Info("Repaired what was not as we had written it", "objects", r.Objects,
			"servicePorts", rows[:min(len(rows), rewrittenRows)], "more", max(0, len(rows)-rewrittenRows))
	}
}

// refusals names the rows that the kernel began or ceased to refuse.
func (l objectLog) refusals(ctx context.Context, w *work, rows []RowStatus) {
	l.report(ctx, func(line func() klog.Logger) {
		for _, r := range rows {
			switch {
			case r.Refused != "":
				line().Info("Kernel refuses service port, the others go on", "servicePort", r.Key, "reason", r.Refused)
			case w.state.Rows[r.Key] != nil: // Else what removed it is reported.
				line().Info("Service port is accepted again", "servicePort", r.Key)
			}
		}
	})
}

// problems says what is wrong that was not before, and what is no longer.
func (l objectLog) problems(ctx context.Context, found, mended []resolve.Problem) {
	l.report(ctx, func(line func() klog.Logger) {
		for _, p := range found {
			line().Info("Object has a problem", "object", p.Object, "field", p.Field, "reason", p.Reason)
		}
		for _, p := range mended {
			line().Info("Problem of an object is mended", "object", p.Object, "field", p.Field)
		}
	})
}
