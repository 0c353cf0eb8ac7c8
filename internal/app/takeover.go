package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
	"sluice/internal/runner"
)

// How long after a failure the removal is tried again, at first and at most.
const (
	takeoverRetry    = 10 * time.Second
	takeoverRetryMax = time.Hour
)

// takeOver removes what kube-proxy and our own other modes left, once our rules
// are in force: never before, so that there is no moment without rules. What is
// left would go on sending connections to endpoints that have long gone. It tries
// again with growing waits what may yet succeed, and then has nothing more to do
// until ctx ends.
func takeOver(ctx context.Context, ready <-chan struct{}, remove func(context.Context) ([]string, error)) error {
	var due <-chan time.Time
	var wait time.Duration
	for {
		select {
		case <-ready:
			ready = nil
		case <-due:
		case <-ctx.Done():
			return nil
		}
		removed, err := remove(ctx)
		for _, what := range removed {
			klog.FromContext(ctx).Info("Removed what another service proxy left", "what", what)
		}
		due = nil
		switch {
		case err == nil || ctx.Err() != nil:
		case onlyInUse(err):
			klog.FromContext(ctx).Info("Some of what another service proxy left stays, somebody else uses it", "reason", err.Error())
		default:
			wait = runner.Backoff(wait, takeoverRetry, takeoverRetryMax)
			klog.FromContext(ctx).Error(err, "Some of what another service proxy left is still there, will try again", "retryIn", wait)
			due = time.After(wait)
		}
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
