package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	eventnames "k8s.io/client-go/tools/record/util"
	"k8s.io/klog/v2"

	"sluice/internal/apiclient"
)

// reportingComponent is the component that events name. Dashboards select by it.
const reportingComponent = "kube-proxy"

// reason has an event's reason, which runbooks refer to, and its action.
type reason struct{ name, action string }

var (
	reasonStarting      = reason{"Starting", "StartKubeProxy"}
	reasonHealthPort    = reason{"FailedToStartProxierHealthcheck", "StartKubeProxy"}
	reasonMetricsPort   = reason{"FailedToStartMetricServer", "StartKubeProxy"}
	reasonServiceHealth = reason{"FailedToStartServiceHealthcheck", "Listen"}
	reasonRelay         = reason{"FailedToRelayNodePort", "Listen"}
	reasonPlatform      = reason{"FailedToSetSysctl", "Tune"}
	reasonRefused       = reason{"ServicePortRefused", "Sync"}
	reasonAccepted      = reason{"ServicePortAccepted", "Sync"}
	reasonBalancing     = reason{"LoadBalancingRefused", "Sync"}
	reasonNotAllowed    = reason{"AddressNotAllowed", "Sync"}
)

const (
	maxEvents         = 100             // length of the queue; further events are lost
	maxNote           = 1024            // the API's limit for a note, in bytes
	seriesGap         = 6 * time.Minute // an event that repeats after a longer time is a new one
	finalEventTimeout = 2 * time.Second // how long the daemon waits for its last event

	eventTries = 12 // attempts, if the API server does not answer
	eventPause = 10 * time.Second
)

// recorder writes events about this node and its Services to the API server, one
// after the other. An event that repeats soon increments the count of the former
// one. It replaces client-go's broadcaster, whose typed clients would link in every
// API group.
type recorder struct {
	client rest.Interface // nil: there is no cluster, and events are dropped
	node   v1.ObjectReference
	queue  chan *eventsv1.Event
	sent   map[string]*eventsv1.Event // recent events, by what repetitions have in common; only run uses it
}

// newRecorder returns a recorder that sends until ctx ends.
func newRecorder(ctx context.Context, client rest.Interface, node string) *recorder {
	r := &recorder{
		client: client,
		node:   v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: types.UID(node)},
		queue:  make(chan *eventsv1.Event, maxEvents),
		sent:   map[string]*eventsv1.Event{},
	}
	if client != nil {
		go r.run(ctx)
	}
	return r
}

func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			r.send(ctx, r.merge(e))
		}
	}
}

// record queues an event. It never blocks: nothing may depend on an event.
func (r *recorder) record(about v1.ObjectReference, kind string, why reason, note string) {
	if r.client == nil {
		return
	}
	select {
	case r.queue <- newEvent(about, kind, why, note):
	default: // the API server does not answer or is slow; the log has the same information
	}
}

// warn records a warning about the node.
func (r *recorder) warn(why reason, note string) { r.record(r.node, v1.EventTypeWarning, why, note) }

// refusal records that the kernel refuses service ports, or accepts them again.
func (r *recorder) refusal(e refusalEvent) {
	about, note, why := r.node, e.note, reasonRefused
	if e.service.Name != "" {
		about = serviceReference(e.service)
		note = fmt.Sprintf("node %s does not serve %s", r.node.Name, e.note)
	}
	if e.kind == v1.EventTypeNormal {
		why = reasonAccepted
		note = cmp.Or(e.note, fmt.Sprintf("node %s serves all ports again", r.node.Name))
	}
	r.record(about, e.kind, why, note)
}

func serviceReference(n types.NamespacedName) v1.ObjectReference {
	return v1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: n.Namespace, Name: n.Name}
}

// recordFinal records why the daemon ends. Unlike record, it waits until the API
// server has the event, because queued events are lost when the process ends.
func (r *recorder) recordFinal(ctx context.Context, why reason, note string) {
	if r.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, finalEventTimeout)
	defer cancel()
	if err := r.write(ctx, newEvent(r.node, v1.EventTypeWarning, why, note)); err != nil {
		klog.FromContext(ctx).Error(err, "Could not write an event, it is lost", "reason", why.name)
	}
}

func newEvent(about v1.ObjectReference, kind string, why reason, note string) *eventsv1.Event {
	now := metav1.NowMicro()
	host, _ := os.Hostname() // only informative, so it may be empty
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      eventnames.GenerateEventName(about.Name, now.UnixNano()),
			Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault),
		},
		EventTime:           now,
		ReportingController: reportingComponent, ReportingInstance: reportingComponent + "-" + host,
		Type: kind, Reason: why.name, Action: why.action, Regarding: about,
		Note: strings.ToValidUTF8(note[:min(len(note), maxNote)], ""),
	}
}

// merge returns the event to write: e, or the recent event that e repeats.
func (r *recorder) merge(e *eventsv1.Event) *eventsv1.Event {
	for key, old := range r.sent {
		last := old.EventTime
		if old.Series != nil {
			last = old.Series.LastObservedTime
		}
		if e.EventTime.Sub(last.Time) > seriesGap {
			delete(r.sent, key)
		}
	}
	key := fmt.Sprint(e.Type, e.Reason, e.Action, e.Regarding)
	old := r.sent[key]
	if old == nil {
		r.sent[key] = e
		return e
	}
	if old.Series == nil {
		old.Series = &eventsv1.EventSeries{Count: 1}
	}
	old.Series.Count++
	old.Series.LastObservedTime = e.EventTime
	return old
}

// send writes an event, and retries if the API server does not answer.
func (r *recorder) send(ctx context.Context, e *eventsv1.Event) {
	var err error
	// Jitter keeps nodes from retrying at the same time.
	backoff := wait.Backoff{Steps: eventTries, Duration: eventPause, Factor: 1, Jitter: 0.25}
	_ = wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		err = r.write(ctx, e)
		answered := apierrors.APIStatus(nil)
		return err == nil || errors.As(err, &answered), nil // an answer, even a rejection, is final
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Could not write an event, it is lost", "reason", e.Reason)
	}
}

// write creates an event, or updates its count. If the server no longer has the
// event, it is created again. An event that already exists was created by an
// attempt whose answer was lost.
func (r *recorder) write(ctx context.Context, e *eventsv1.Event) error {
	at := func(request *rest.Request) *rest.Request {
		return request.AbsPath(apiclient.Path(eventsv1.GroupName)).Namespace(e.Namespace).Resource("events")
	}
	if e.Series != nil {
		series, err := json.Marshal(map[string]any{"series": e.Series})
		if err != nil {
			return err
		}
		err = at(r.client.Patch(types.MergePatchType)).Name(e.Name).Body(series).Do(ctx).Error()
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	err := at(r.client.Post()).Body(e).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
