package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
)

// How long after a failure the removal is tried again, at first and at most.
const (
	takeoverRetry    = 10 * time.Second
	takeoverRetryMax = time.Hour
)

// takeover removes what kube-proxy and our own other modes left, once our rules
// are in force: never before, so that there is no moment without rules. What is
// left would go on sending connections to endpoints that have long gone.
type takeover struct {
	ready  <-chan struct{} // closed when our rules are in force
	remove func(context.Context) ([]string, error)
}

func newTakeover(ready <-chan struct{}, remove func(context.Context) ([]string, error)) *takeover {
	return &takeover{ready, remove}
}

// Run removes the leftovers, trying again with growing waits what may yet
// succeed, and then has nothing more to do until ctx ends.
func (t *takeover) Run(ctx context.Context) error {
	var due <-chan time.Time
	ready, wait := t.ready, takeoverRetry
	for {
		select {
		case <-ready:
			ready = nil
		case <-due:
		case <-ctx.Done():
			return nil
		}
		removed, err := t.remove(ctx)
		for _, what := range removed {
			klog.FromContext(ctx).Info("Removed what another service proxy left", "what", what)
		}
		due = nil
		if err == nil || ctx.Err() != nil {
			continue
		}
		if onlyInUse(err) {
			klog.FromContext(ctx).Info("Some of what another service proxy left stays, somebody else uses it", "reason", err.Error())
			continue
		}
		klog.FromContext(ctx).Error(err, "Some of what another service proxy left is still there, will try again", "retryIn", wait)
		due, wait = time.After(wait), min(4*wait, takeoverRetryMax)
	}
}

// onlyInUse reports whether trying again is in vain: all that is wrong is that
// somebody else uses what is left.
func onlyInUse(err error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(e error) bool { return !onlyInUse(e) })
	case interface{ Unwrap() error }:
		return onlyInUse(e.Unwrap())
	default:
		return errors.Is(err, proxy.ErrInUse)
	}
}
