package informer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// repeatAfter is how long the same trouble with the same resource stays quiet.
// It is tried again every few seconds, which would flood the log.
const repeatAfter = time.Minute

// busyMin and busyMax bound the pauses that a server is given which is too busy
// to stream a list: those that it asks for, and those that double when it does
// not say.
const (
	busyMin = time.Second
	busyMax = time.Minute
)

// retryMin and retryMax bound the pauses after which a watch is tried again that
// failed for another reason.
const (
	retryMin = 800 * time.Millisecond
	retryMax = 30 * time.Second
)

// firstComplaint is how long objects may be awaited without a word.
const firstComplaint = 10 * time.Second

// watchErrors says in one line why a resource cannot be watched. One goroutine
// calls it.
type watchErrors struct {
	resource, group string

	reason string
	logged time.Time
}

func (w *watchErrors) handle(ctx context.Context, err error) {
	log := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil, errors.Is(err, io.EOF):
		// The watch was ended by us or, as it should be now and then, by the
		// server.
		return
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), errors.Is(err, io.ErrUnexpectedEOF):
		log.V(4).Info("Watch ended early", "resource", w.resource, "err", err)
		return
	}
	reason := w.explain(err)
	if reason == w.reason && time.Since(w.logged) < repeatAfter {
		log.V(4).Info("Watch still fails", "resource", w.resource, "reason", reason)
		return
	}
	w.reason, w.logged = reason, time.Now()
	log.Error(nil, "Watch fails and is tried again, the last known objects stay in force",
		"resource", w.resource, "reason", reason)
}

// intercept sees the error of a watch request before the reflector does. Of a
// server that refuses connections or is too busy it says nothing and
// tries again; it even sleeps through the end of its context when it asks for a
// list in the form of a watch (seen in client-go 0.37). There it is given an
// error that it does not know: it asks for a plain list then, and complains.
// A server that is too busy must not be asked for that; see pause.
func (w *watchErrors) intercept(ctx context.Context, o metav1.ListOptions, err error) error {
	if !utilnet.IsConnectionRefused(err) && !apierrors.IsTooManyRequests(err) {
		return err
	}
	if streams(o) {
		return errors.New(err.Error())
	}
	w.handle(ctx, err)
	return err
}

// streams reports whether a list is asked for in the form of a watch.
func streams(o metav1.ListOptions) bool { return o.SendInitialEvents != nil && *o.SendInitialEvents }

// pause gives a server time that has refused a stream because it is too busy,
// and returns an error if ctx ends meanwhile. A plain list would cost it more.
func (w *watchErrors) pause(ctx context.Context, err error, attempt int) error {
	w.handle(ctx, err)
	d := busyMin << min(attempt, 10)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		d = time.Duration(seconds) * time.Second
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait.Jitter(min(d, busyMax), 0.5)): // Other nodes wait as well.
		return nil
	}
}

// explain returns what is wrong and, where we know it, what to do.
func (w *watchErrors) explain(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("forbidden: the ClusterRole of this user needs the rule "+
			"{apiGroups: [%q], resources: [%q], verbs: [list, watch]}", w.group, w.resource)
	case apierrors.IsUnauthorized(err):
		return "unauthorized: the API server does not accept the credentials of the kubeconfig or service account"
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("not found: the API server does not serve %s %s, it may be too old", path.Join(w.group, "v1"), w.resource)
	}
	return err.Error()
}
