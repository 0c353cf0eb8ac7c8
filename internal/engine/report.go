package engine

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// problemLines is how many problems of a kind one sync shows. Whoever writes
// objects decides how many there are, and must not decide how long the log is.
const problemLines = 100

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

// reportRefusals names the rows that the kernel began or ceased to refuse.
func reportRefusals(ctx context.Context, w *work, rows []RowStatus) {
	logger := klog.FromContext(ctx)
	for _, r := range rows {
		switch {
		case r.Refused != "":
			logger.Info("Kernel refuses service port, the others go on", "servicePort", r.Key, "reason", r.Refused)
		case w.state.Rows[r.Key] != nil: // Else what removed it is reported.
			logger.Info("Service port is accepted again", "servicePort", r.Key)
		}
	}
}

// reportProblems says what is wrong that was not before, and what is no longer.
func reportProblems(ctx context.Context, found, mended []resolve.Problem) {
	logger := klog.FromContext(ctx)
	level := func(i int) klog.Logger { // for line i of many of one kind
		if i < problemLines {
			return logger
		}
		return logger.V(4)
	}
	for i, p := range found {
		level(i).Info("Object has a problem", "object", p.Object, "field", p.Field, "reason", p.Reason)
	}
	for i, p := range mended {
		level(i).Info("Problem of an object is mended", "object", p.Object, "field", p.Field)
	}
	if len(found) > problemLines || len(mended) > problemLines {
		logger.Info("More objects than are shown changed their problems, verbosity 4 shows all",
			"found", len(found), "mended", len(mended))
	}
}
