package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane"
	"sluice/internal/proxy"
	"sluice/internal/runner"
)

// takeOver removes what kube-proxy and our own other modes left, once our rules
// are in force: never before, so that there is no moment without rules. What is
// left would go on sending connections to endpoints that have long gone. It tries
// again with growing waits what may yet succeed, and then has nothing more to do
// until ctx ends.
func (s *ProxyServer) takeOver(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	r := runner.New("remove what is left", func(ctx context.Context) error {
		removed, err := dataplane.Cleanup(ctx, s.dataplane)
		for _, what := range removed {
			logger.Info("Removed what another service proxy left", "what", what)
		}
		if onlyInUse(err) {
			logger.Info("Some of what another service proxy left stays, another process uses it", "reason", err.Error())
			return nil
		}
		return err
	}, runner.Settings{
		RetryMin: 10 * time.Second, RetryMax: time.Hour,
		Failed: func(_ context.Context, err error, wait time.Duration) {
			logger.Error(err, "Some of what another service proxy left is still there, will try again", "retryIn", wait)
		},
	})
	select {
	case <-s.ready:
		r.Run()
	case <-ctx.Done():
	}
	return r.Loop(ctx)
}

// onlyInUse reports whether trying again is in vain: all that is wrong is that
// another process uses what is left.
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
