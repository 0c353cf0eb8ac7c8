package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	eventnames "k8s.io/client-go/tools/record/util"
	"k8s.io/klog/v2"

	"sluice/internal/apiclient"
)

const (
	// maxEvents is how many events may wait for the API server; more are lost.
	maxEvents = 100
	// maxNote is how long the API lets a note be, in bytes.
	maxNote = 1024
	// seriesGap is how long an event must not have happened to be a new one.
	seriesGap = 6 * time.Minute
	// eventTries and eventPause say how long an API server that does not answer
	// is asked again.
	eventTries = 12
	eventPause = 10 * time.Second
)

// eventSender files events with the API server, one after the other. What
// happens again soon is counted in the event that is already there. It stands in
// for client-go's broadcaster, which cannot be had without every API group.
type eventSender struct {
	client rest.Interface
	queue  chan *eventsv1.Event
	sent   map[eventKey]*eventsv1.Event // of late; used by run alone
}

// eventKey is what two events must share to be one that happened twice.
type eventKey struct {
	kind, reason, action string
	about                v1.ObjectReference
}

func newEventSender(client rest.Interface) *eventSender {
	return &eventSender{client: client, queue: make(chan *eventsv1.Event, maxEvents), sent: map[eventKey]*eventsv1.Event{}}
}

// newEvent describes what has just happened.
func newEvent(about v1.ObjectReference, kind, reason, action, note string) *eventsv1.Event {
	now := metav1.NowMicro()
	host, _ := os.Hostname() // who reports is for people to read, and may be cut short
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      eventnames.GenerateEventName(about.Name, now.UnixNano()),
			Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault),
		},
		EventTime:           now,
		ReportingController: reportingComponent, ReportingInstance: reportingComponent + "-" + host,
		Type: kind, Reason: reason, Action: action, Regarding: about,
		Note: strings.ToValidUTF8(note[:min(len(note), maxNote)], ""),
	}
}

// add queues an event. It never waits: nothing may depend on an event.
func (s *eventSender) add(e *eventsv1.Event) {
	select {
	case s.queue <- e:
	default: // the API server is gone or slow, and the log has it
	}
}

// run sends until ctx ends.
func (s *eventSender) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-s.queue:
			s.send(ctx, e)
		}
	}
}

// send files an event, and tries again when nobody answers.
func (s *eventSender) send(ctx context.Context, e *eventsv1.Event) {
	e = s.merge(e)
	var err error
	for range eventTries {
		if err = s.file(ctx, e); err == nil {
			return
		}
		if answered := apierrors.APIStatus(nil); errors.As(err, &answered) || ctx.Err() != nil {
			break // it would answer the same again
		}
		select {
		case <-ctx.Done():
		case <-time.After(eventPause + rand.N(eventPause/4)): // not all nodes at once
		}
	}
	if ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Event was not sent", "reason", e.Reason)
	}
}

// merge returns the event to file: e, or the one of late that e repeats.
func (s *eventSender) merge(e *eventsv1.Event) *eventsv1.Event {
	for key, old := range s.sent {
		if e.EventTime.Sub(lastSeen(old)) > seriesGap {
			delete(s.sent, key)
		}
	}
	key := eventKey{e.Type, e.Reason, e.Action, e.Regarding}
	old := s.sent[key]
	if old == nil {
		s.sent[key] = e
		return e
	}
	if old.Series == nil {
		old.Series = &eventsv1.EventSeries{Count: 1}
	}
	old.Series.Count++
	old.Series.LastObservedTime = e.EventTime
	return old
}

func lastSeen(e *eventsv1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	return e.EventTime.Time
}

// file tells the API server of a new event, or of a new count of one. The server
// may have forgotten it by then.
func (s *eventSender) file(ctx context.Context, e *eventsv1.Event) error {
	if e.Series != nil {
		if err := s.patch(ctx, e); !apierrors.IsNotFound(err) {
			return err
		}
	}
	return s.create(ctx, e)
}

// create files a new event. One that is there was filed by a try whose answer was
// lost.
func (s *eventSender) create(ctx context.Context, e *eventsv1.Event) error {
	err := s.events(s.client.Post(), e).Body(e).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (s *eventSender) patch(ctx context.Context, e *eventsv1.Event) error {
	series, err := json.Marshal(map[string]any{"series": e.Series})
	if err != nil {
		return err
	}
	return s.events(s.client.Patch(types.MergePatchType), e).Name(e.Name).Body(series).Do(ctx).Error()
}

func (s *eventSender) events(r *rest.Request, e *eventsv1.Event) *rest.Request {
	return r.AbsPath(apiclient.Path(eventsv1.GroupName)).Namespace(e.Namespace).Resource("events")
}
