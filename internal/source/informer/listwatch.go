package informer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"path"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"sluice/internal/apiclient"
)

// resource lists and watches the objects of one kind in all namespaces.
type resource struct {
	client         rest.Interface
	group, name    string
	list           runtime.Object // an empty list of the kind
	labels, fields string         // selectors; empty selects everything
}

// responseTimeout is how long a server may take for a list, or to end a watch after its
// timeout. The API server's own limit for a list is a minute by default. Without a
// timeout, a server that hangs would be waited for as long as the connection exists.
const responseTimeout = 2 * time.Minute

func (r *resource) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list := r.list.DeepCopyObject()
	return list, r.get(o).Timeout(responseTimeout).Do(ctx).Into(list)
}

func (r *resource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	cancel := func() {}
	if o.TimeoutSeconds != nil {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+responseTimeout)
	}
	w, err := r.get(o).Watch(ctx)
	if err != nil || isEmpty(w) {
		cancel()
		return w, err
	}
	return &boundedWatch{w, cancel}, nil
}

// isEmpty reports whether a watch is what client-go returns instead of some errors, such
// as a connection that was closed before the answer. It has no events.
func isEmpty(w watch.Interface) bool {
	return reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch())
}

// boundedWatch is a watch with a timeout.
type boundedWatch struct {
	watch.Interface
	cancel func()
}

func (w *boundedWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}

func (r *resource) get(o metav1.ListOptions) *rest.Request {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
	return r.client.Get().AbsPath(apiclient.Path(r.group)).Resource(r.name).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, metav1.Unversioned)
}

// checkList returns an error if a list is not from an API server. An empty response of
// another server, such as a proxy in between, must not be taken for a cluster without
// objects: that would remove every Service.
func checkList(list runtime.Object, resource string) error {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	if m.GetResourceVersion() == "" {
		return fmt.Errorf("list %s: the response is not from an API server, it has no resourceVersion", resource)
	}
	return nil
}

// listerWatcher is a resource; tests have others.
type listerWatcher interface {
	List(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch returns a ListWatch for a reflector. Errors of watches are passed to errors
// first, because a reflector does not report all of them.
func listWatch(of listerWatcher, errors *watchErrors) *cache.ListWatch {
	next := newBackoff(unreachableMax)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := of.List(ctx, o)
			if err == nil {
				err = checkList(list, errors.resource)
			}
			if err != nil {
				return nil, err
			}
			errors.contact.heard()
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			for {
				if err := errors.throttle(ctx, o); err != nil {
					return nil, err
				}
				ended := errors.contact.ask()
				w, err := of.Watch(ctx, o)
				ended()
				switch refused := utilnet.IsConnectionRefused(err); {
				case refused && !isWatchList(o): // The reflector would wait for up to a minute.
					errors.handle(ctx, err)
					d := next()
					errors.contact.retryIn(d)
					if err := sleep(ctx, d); err != nil {
						return nil, err
					}
				case isWatchList(o) && apierrors.IsTooManyRequests(err):
					errors.handle(ctx, err) // The reflector would ask for a plain list, which costs the server more.
					errors.retryAfter, _ = apierrors.SuggestsClientDelay(err)
				case err == nil && isEmpty(w):
					errors.contact.fail("the API server cannot answer, or the connection is lost before it does")
					return w, nil
				case err == nil:
					errors.contact.heard()
					return w, nil
				default:
					return nil, errors.intercept(ctx, o, err)
				}
			}
		},
	}
}

const (
	// firstWarning is how long the first list may take before a log line says so.
	firstWarning = 10 * time.Second

	// logInterval is the time between log lines with the same error of a resource,
	// which is retried every few seconds.
	logInterval = time.Minute
)

// busyMin and busyMax bound the pauses before a streamed list is requested again, after
// the server was too busy or the stream broke off: the pause that the server asks for,
// or one that doubles each time.
const (
	busyMin = time.Second
	busyMax = time.Minute
)

// The pauses after other errors double from retryMin, and are up to twice as long, at
// random. A server that responds may be overloaded, so its pauses grow up to retryMax. An
// unreachable server has no work with requests, and while it is unreachable connections
// may be sent to endpoints that are gone, so the pauses grow to unreachableMax only.
const (
	retryMin       = 800 * time.Millisecond
	retryMax       = 30 * time.Second
	unreachableMax = 5 * time.Second
)

// newBackoff returns a function that returns growing pauses, up to a longest one. They
// start again if it has not been called for four times that.
func newBackoff(longest time.Duration) wait.DelayFunc {
	backoff := wait.Backoff{Duration: retryMin, Cap: longest, Steps: math.MaxInt32, Factor: 2, Jitter: 1}
	return backoff.DelayWithReset(clock.RealClock{}, 4*longest)
}

// unreachable reports whether an error means that the server cannot be reached, or that
// the connection was lost.
func unreachable(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok || errors.Is(err, io.ErrUnexpectedEOF)
}

// sleep waits, and returns an error if ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// watchErrors logs in one line why a resource cannot be watched, and limits how often
// streamed lists are requested. It is for one goroutine.
type watchErrors struct {
	resource, group string
	contact         *contact

	reason string // the last one that was logged
	logged time.Time

	watchLists int // how many streamed lists were requested since reset
	retryAfter int // how many seconds the server wants the next one to wait; 0 if it does not say
}

// reset is called before the reflector starts again, which happens after a pause.
func (w *watchErrors) reset() { w.watchLists, w.retryAfter = 0, 0 }

func (w *watchErrors) handle(ctx context.Context, err error) {
	log := klog.FromContext(ctx)
	expired := apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
	if ctx.Err() == nil && !expired {
		w.contact.fail(w.explain(withoutURL(err)))
	}
	switch {
	case ctx.Err() != nil, errors.Is(err, io.EOF):
		// We ended the watch, or the server did, which it does regularly.
		return
	case expired, errors.Is(err, io.ErrUnexpectedEOF):
		log.V(4).Info("Watch ended early", "resource", w.resource, "err", err)
		return
	}
	reason := w.explain(err)
	if reason == w.reason && time.Since(w.logged) < logInterval {
		log.V(4).Info("Watch still fails", "resource", w.resource, "reason", reason)
		return
	}
	w.reason, w.logged = reason, time.Now()
	log.Error(nil, "Watch failed and is retried, the last known objects stay in force",
		"resource", w.resource, "reason", reason)
}

// intercept handles the error of a watch request and returns what the reflector gets
// instead. If a server refuses connections or is too busy, the reflector retries without
// reporting an error; for a streamed list it even sleeps after its context has ended
// (seen in client-go 0.37). So for a streamed list it gets an error that it does not
// know: it then requests a plain list and reports the error. A server that is too busy
// must not get that request; see listWatch.
func (w *watchErrors) intercept(ctx context.Context, o metav1.ListOptions, err error) error {
	if !utilnet.IsConnectionRefused(err) && !apierrors.IsTooManyRequests(err) {
		return err
	}
	if isWatchList(o) {
		return errors.New(err.Error())
	}
	w.handle(ctx, err)
	return err
}

// isWatchList reports whether a watch request is for a streamed list.
func isWatchList(o metav1.ListOptions) bool {
	return o.SendInitialEvents != nil && *o.SendInitialEvents
}

// throttle waits before a streamed list is requested again, and returns an error if ctx
// ends before. A reflector does not wait if a stream broke off or had expired (seen in
// client-go 0.37).
func (w *watchErrors) throttle(ctx context.Context, o metav1.ListOptions) error {
	if !isWatchList(o) {
		return nil
	}
	if w.watchLists++; w.watchLists == 1 {
		return nil
	}
	d := busyMin << min(w.watchLists-2, 10)
	if w.retryAfter > 0 {
		d = time.Duration(w.retryAfter) * time.Second
	}
	w.retryAfter = 0
	return sleep(ctx, wait.Jitter(min(d, busyMax), 0.5)) // Other nodes wait too, and should not all retry at once.
}

// withoutURL returns the cause of a failed request. The URL would make the reason another
// one for each kind.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// explain returns the cause of an error and, if known, what to do about it.
func (w *watchErrors) explain(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return unanswered
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
