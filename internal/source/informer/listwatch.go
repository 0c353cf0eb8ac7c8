package informer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path"
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

// resource is the objects of one kind that the API server has, in all
// namespaces.
type resource struct {
	client         rest.Interface
	group, name    string
	list           runtime.Object // an empty list of them
	labels, fields string         // what the server is asked to filter by; empty: everything
}

// answerTime is how long a server may take for a list, of which it is given a minute
// itself unless told otherwise, or to end a watch whose time is over. A server that is
// stuck says nothing, and would be waited for as long as the connection is there.
const answerTime = 2 * time.Minute

func (r *resource) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list := r.list.DeepCopyObject()
	return list, r.get(o).Timeout(answerTime).Do(ctx).Into(list)
}

func (r *resource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	cancel := func() {}
	if o.TimeoutSeconds != nil {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+answerTime)
	}
	w, err := r.get(o).Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return &boundedWatch{w, cancel}, nil
}

// boundedWatch is a watch whose time is bounded.
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

// checkList refuses a list that no API server has made: whatever else answers,
// a proxy or a server of another kind, must not be taken for a cluster without
// objects, which would take every Service away.
func checkList(list runtime.Object, resource string) error {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	if m.GetResourceVersion() == "" {
		return fmt.Errorf("list %s: the answer is not an API server's, it has no resourceVersion", resource)
	}
	return nil
}

// listerWatcher is a resource, or a test's.
type listerWatcher interface {
	List(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch returns what an informer lists and watches with. Errors of a watch
// go through errors first, because an informer keeps some to itself.
func listWatch(of listerWatcher, errors *watchErrors) *cache.ListWatch {
	next := pauses(awayMax)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := of.List(ctx, o)
			if err != nil {
				return nil, err
			}
			return list, checkList(list, errors.resource)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			for {
				if err := errors.pace(ctx, o); err != nil {
					return nil, err
				}
				w, err := of.Watch(ctx, o)
				switch refused := utilnet.IsConnectionRefused(err); {
				case refused && !streams(o): // the reflector would wait for as much as a minute
					errors.handle(ctx, err)
					if err := sleep(ctx, next()); err != nil {
						return nil, err
					}
				case streams(o) && apierrors.IsTooManyRequests(err):
					errors.handle(ctx, err) // A plain list would cost the server more.
					errors.retryAfter, _ = apierrors.SuggestsClientDelay(err)
				default:
					return w, errors.intercept(ctx, o, err)
				}
			}
		},
	}
}

// repeatAfter is how long the same trouble with the same resource stays quiet.
// It is tried again every few seconds, which would flood the log.
const repeatAfter = time.Minute

// busyMin and busyMax bound the pauses that a server is given which is too busy
// to stream a list, or does not come to its end: those that it asks for, and those that
// double when it does not say.
const (
	busyMin = time.Second
	busyMax = time.Minute
)

// The pauses after which a watch is tried again that failed for another reason double
// from retryMin, and are up to twice as long, at random. A server that answers may be in
// trouble, and is asked less and less until retryMax. One that cannot be reached has no
// work with being asked, and what was missed meanwhile is sent to endpoints that may be
// gone: until awayMax.
const (
	retryMin = 800 * time.Millisecond
	retryMax = 30 * time.Second
	awayMax  = 5 * time.Second
)

// pauses returns what gives one pause after the other, up to a longest one. They begin
// anew after a time without any.
func pauses(longest time.Duration) wait.DelayFunc {
	backoff := wait.Backoff{Duration: retryMin, Cap: longest, Steps: math.MaxInt32, Factor: 2, Jitter: 1}
	return backoff.DelayWithReset(clock.RealClock{}, 4*longest)
}

// away reports whether a server could not be reached, or went away.
func away(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok || errors.Is(err, io.ErrUnexpectedEOF)
}

// sleep returns an error if ctx ends before a time has passed.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// firstComplaint is how long objects may be awaited without a word.
const firstComplaint = 10 * time.Second

// watchErrors says in one line why a resource cannot be watched. One goroutine
// calls it.
type watchErrors struct {
	resource, group string

	reason string
	logged time.Time

	streams    int // that were asked for since the reflector began
	retryAfter int // seconds that the server wants to rest before the next one; 0: it does not say
}

// begin says that the reflector begins, which has had its pause.
func (w *watchErrors) begin() { w.streams, w.retryAfter = 0, 0 }

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

// intercept sees the error of a watch request before the reflector does, which
// says nothing of a server that refuses connections or is too busy, and tries again;
// it even sleeps through the end of its context when it asks for a list in the form
// of a watch (seen in client-go 0.37). There it is given an error that it does not
// know: it asks for a plain list then, and complains. A server that is too busy must
// not be asked for that; see listWatch.
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

// pace gives the server time before it is asked once more for a list in the form of a
// watch, and returns an error if ctx ends meanwhile. A reflector asks without a pause
// when a stream broke off, or had expired (seen in client-go 0.37).
func (w *watchErrors) pace(ctx context.Context, o metav1.ListOptions) error {
	if !streams(o) {
		return nil
	}
	if w.streams++; w.streams == 1 {
		return nil
	}
	d := busyMin << min(w.streams-2, 10)
	if w.retryAfter > 0 {
		d = time.Duration(w.retryAfter) * time.Second
	}
	w.retryAfter = 0
	return sleep(ctx, wait.Jitter(min(d, busyMax), 0.5)) // Other nodes wait as well.
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
