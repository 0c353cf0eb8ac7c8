package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// reportFailure says that a sync failed. The runner tries again by itself.
func reportFailure(ctx context.Context, err error, retryIn time.Duration) {
	klog.FromContext(ctx).Error(err, "Sync did not go through, what it did not replace stays in force, will try again", "retryIn", retryIn)
}

// report says what a sync did.
func report(ctx context.Context, w work, told *proxy.Delta, first bool) {
	logger := klog.FromContext(ctx)
	elapsed := time.Since(w.start)
	if first {
		logger.Info("First sync done", "rows", len(w.state.Rows), "elapsed", elapsed)
	}
	logger.V(2).Info("Synced", "full", w.full, "changed", len(told.Upserts), "removed", len(told.Removes),
		"node", told.Node != nil, "serviceCIDRs", told.CIDRs != nil, "rows", len(w.state.Rows), "elapsed", elapsed)
	if v := logger.V(4); v.Enabled() {
		for _, u := range told.Upserts {
			v.Info("Wrote service port", "servicePort", u.New.Key, "new", u.Old == nil, "row", u.New)
		}
		for _, r := range told.Removes {
			v.Info("Removed service port", "servicePort", r.Key)
		}
	}
}

// reportRefusals names the rows that the kernel began or ceased to refuse.
func reportRefusals(ctx context.Context, all []news) {
	logger := klog.FromContext(ctx)
	slices.SortFunc(all, func(a, b news) int { return proxy.ComparePortKeys(a.key, b.key) })
	for _, n := range all {
		if n.reason == "" {
			logger.Info("Service port is refused no more", "servicePort", n.key)
		} else {
			logger.Info("Kernel refuses service port, the others go on", "servicePort", n.key, "reason", n.reason)
		}
	}
}

// problems are those of the objects that have been reported.
type problems map[resolve.Problem]struct{}

// report says what is wrong that was not before, and what is no longer.
func (p problems) report(ctx context.Context, now []resolve.Problem) {
	if len(p) == 0 && len(now) == 0 {
		return
	}
	logger := klog.FromContext(ctx)
	current := make(problems, len(now))
	for _, n := range now {
		current[n] = struct{}{}
		if _, known := p[n]; !known {
			p[n] = struct{}{}
			logger.Info("Object has a problem", "object", n.Object, "field", n.Field, "reason", n.Reason)
		}
	}
	for _, n := range slices.SortedFunc(maps.Keys(p), compareProblems) {
		if _, still := current[n]; !still {
			delete(p, n)
			logger.Info("Problem of an object is mended", "object", n.Object, "field", n.Field)
		}
	}
}

func compareProblems(a, b resolve.Problem) int { return strings.Compare(a.String(), b.String()) }
