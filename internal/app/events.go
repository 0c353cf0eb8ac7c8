package app

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
)

// reportingComponent is what events are filed under. Dashboards know that name.
const reportingComponent = "kube-proxy"

// What happened, in the words that runbooks look for.
const (
	reasonStarting       = "Starting"
	reasonHealthPort     = "FailedToStartProxierHealthcheck"
	reasonMetricsPort    = "FailedToStartMetricServer"
	reasonServiceHealth  = "FailedToStartServiceHealthcheck"
	reasonPlatform       = "FailedToSetSysctl"
	reasonRefused        = "ServicePortRefused"
	reasonAccepted       = "ServicePortAccepted"
	actionStart          = "StartKubeProxy"
	actionListen         = "Listen"
	actionTune           = "Tune"
	actionSync           = "Sync"
	eventNamespaceOfNode = "" // Nodes have none
)

// recorder tells the cluster what happens on this node. Without a cluster the
// log must do.
type recorder struct {
	client kubernetes.Interface // nil: there is no cluster
	events events.EventRecorder // nil: nobody listens
	node   *v1.ObjectReference
}

// lastWord is how long the daemon stays for its last event.
const lastWord = 2 * time.Second

// newRecorder returns a recorder that sends until ctx ends. A client of nil
// means that there is no cluster.
func newRecorder(ctx context.Context, client kubernetes.Interface, node string) *recorder {
	r := &recorder{node: &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, Namespace: eventNamespaceOfNode, UID: types.UID(node)}}
	if client == nil {
		return r
	}
	r.client = client
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Events will not be sent")
		return r
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	r.events = broadcaster.NewRecorder(scheme.Scheme, reportingComponent)
	return r
}

// normal reports that something about the node went as it should.
func (r *recorder) normal(reason, action string) {
	if r.events != nil {
		r.events.Eventf(r.node, nil, v1.EventTypeNormal, reason, action, "")
	}
}

// warn reports that something about the node did not.
func (r *recorder) warn(reason, action, format string, args ...any) {
	if r.events != nil {
		r.tell(r.node, v1.EventTypeWarning, reason, action, fmt.Sprintf(format, args...))
	}
}

// last reports why the daemon ends, and returns when that is on record: events
// that are sent in the background would end with the process.
func (r *recorder) last(ctx context.Context, reason, action, note string) {
	if r.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastWord)
	defer cancel()
	now := metav1.NowMicro()
	_, err := r.client.EventsV1().Events(metav1.NamespaceDefault).Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{GenerateName: r.node.Name + "."},
		EventTime:           now,
		ReportingController: reportingComponent, ReportingInstance: reportingComponent + "-" + r.node.Name,
		Type: v1.EventTypeWarning, Reason: reason, Action: action, Note: note, Regarding: *r.node,
	}, metav1.CreateOptions{})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Event was not sent", "reason", reason)
	}
}

// maxNote is what an event can say, in bytes.
const maxNote = 1024

// warnService reports what did not work for a Service.
func (r *recorder) warnService(namespace, name, reason, action, note string) {
	r.tell(serviceReference(namespace, name), v1.EventTypeWarning, reason, action, note)
}

// refusal reports what the kernel does not take, or takes again.
func (r *recorder) refusal(e refusalEvent) {
	about, note, reason := r.node, e.note, reasonRefused
	if e.service.Name != "" {
		about = serviceReference(e.service.Namespace, e.service.Name)
		note = fmt.Sprintf("node %s does not serve %s", r.node.Name, e.note)
	}
	if e.kind == v1.EventTypeNormal {
		reason = reasonAccepted
		note = cmp.Or(e.note, fmt.Sprintf("node %s serves all ports again", r.node.Name))
	}
	r.tell(about, e.kind, reason, actionSync, note)
}

// tell sends an event, cut to what one can hold.
func (r *recorder) tell(about *v1.ObjectReference, kind, reason, action, note string) {
	if r.events != nil {
		note = strings.ToValidUTF8(note[:min(len(note), maxNote)], "") // the cut may go through a letter
		r.events.Eventf(about, nil, kind, reason, action, "%s", note)
	}
}

func serviceReference(namespace, name string) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: namespace, Name: name}
}
