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

// reportingComponent is what events are filed under. Dashboards know that name.
const reportingComponent = "kube-proxy"

// reason is what happened, in the words that runbooks look for, and what the
// proxy was doing.
type reason struct{ name, action string }

var (
	reasonStarting      = reason{"Starting", "StartKubeProxy"}
	reasonHealthPort    = reason{"FailedToStartProxierHealthcheck", "StartKubeProxy"}
	reasonMetricsPort   = reason{"FailedToStartMetricServer", "StartKubeProxy"}
	reasonServiceHealth = reason{"FailedToStartServiceHealthcheck", "Listen"}
	reasonPlatform      = reason{"FailedToSetSysctl", "Tune"}
	reasonRefused       = reason{"ServicePortRefused", "Sync"}
	reasonAccepted      = reason{"ServicePortAccepted", "Sync"}
	reasonBalancing     = reason{"LoadBalancingRefused", "Sync"}
	reasonNotAllowed    = reason{"AddressNotAllowed", "Sync"}
)

const (
	maxEvents     = 100             // how many may wait for the API server; more are lost
	maxNote       = 1024            // how long the API lets a note be, in bytes
	seriesGap     = 6 * time.Minute // how long an event must not have happened to be a new one
	lastEventTime = 2 * time.Second // how long the daemon stays for its last event

	eventTries = 12 // of an API server that does not answer
	eventPause = 10 * time.Second
)

// recorder tells the cluster what happens on this node: it files events with the
// API server, one after the other. What happens again soon is counted in the
// event that is already there. It stands in for client-go's broadcaster, which
// cannot be had without every API group.
type recorder struct {
	client rest.Interface // nil: there is no cluster, and the log must do
	node   v1.ObjectReference
	queue  chan *eventsv1.Event
	sent   map[string]*eventsv1.Event // of late, by what one that happens again has in common; used by run alone
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

// record queues an event. It never waits: nothing may depend on an event.
func (r *recorder) record(about v1.ObjectReference, kind string, why reason, note string) {
	if r.client == nil {
		return
	}
	select {
	case r.queue <- newEvent(about, kind, why, note):
	default: // the API server is gone or slow, and the log has it
	}
}

// warn reports that something about the node did not go as it should.
func (r *recorder) warn(why reason, note string) { r.record(r.node, v1.EventTypeWarning, why, note) }

// refusal reports what the kernel does not take, or takes again.
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

// last reports why the daemon ends, and returns when that is on record: events
// that are sent in the background would end with the process.
func (r *recorder) last(ctx context.Context, why reason, note string) {
	if r.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastEventTime)
	defer cancel()
	if err := r.file(ctx, newEvent(r.node, v1.EventTypeWarning, why, note)); err != nil {
		klog.FromContext(ctx).Error(err, "Event was not sent", "reason", why.name)
	}
}

func newEvent(about v1.ObjectReference, kind string, why reason, note string) *eventsv1.Event {
	now := metav1.NowMicro()
	host, _ := os.Hostname() // who reports is for people to read, and may be cut short
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

// merge returns the event to file: e, or the one of late that e repeats.
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

// send files an event, and tries again when the API server does not answer.
func (r *recorder) send(ctx context.Context, e *eventsv1.Event) {
	var err error
	// Not all nodes try at once.
	tries := wait.Backoff{Steps: eventTries, Duration: eventPause, Factor: 1, Jitter: 0.25}
	_ = wait.ExponentialBackoffWithContext(ctx, tries, func(ctx context.Context) (bool, error) {
		err = r.file(ctx, e)
		answered := apierrors.APIStatus(nil)
		return err == nil || errors.As(err, &answered), nil // it would answer the same again
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Event was not sent", "reason", e.Reason)
	}
}

// file tells the API server of a new event, or of a new count of one, which the
// server may have forgotten by then. An event that is there already was filed by
// a try whose answer was lost.
func (r *recorder) file(ctx context.Context, e *eventsv1.Event) error {
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
