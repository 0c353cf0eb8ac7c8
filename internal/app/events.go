package app

import (
	"cmp"
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
	sender *eventSender // nil: there is no cluster
	node   v1.ObjectReference
}

// lastWord is how long the daemon stays for its last event.
const lastWord = 2 * time.Second

// newRecorder returns a recorder that sends until ctx ends. A client of nil
// means that there is no cluster.
func newRecorder(ctx context.Context, client rest.Interface, node string) *recorder {
	r := &recorder{node: v1.ObjectReference{
		Kind: "Node", APIVersion: "v1", Name: node, Namespace: eventNamespaceOfNode, UID: types.UID(node),
	}}
	if client == nil {
		return r
	}
	r.sender = newEventSender(client)
	go r.sender.run(ctx)
	return r
}

// record sends an event in the background.
func (r *recorder) record(about v1.ObjectReference, kind, reason, action, note string) {
	if r.sender != nil {
		r.sender.add(newEvent(about, kind, reason, action, note))
	}
}

// normal reports that something about the node went as it should.
func (r *recorder) normal(reason, action string) {
	r.record(r.node, v1.EventTypeNormal, reason, action, "")
}

// warn reports that something about the node did not.
func (r *recorder) warn(reason, action, format string, args ...any) {
	r.record(r.node, v1.EventTypeWarning, reason, action, fmt.Sprintf(format, args...))
}

// warnService reports what did not work for a Service.
func (r *recorder) warnService(namespace, name, reason, action, note string) {
	r.record(serviceReference(namespace, name), v1.EventTypeWarning, reason, action, note)
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
	r.record(about, e.kind, reason, actionSync, note)
}

func serviceReference(namespace, name string) v1.ObjectReference {
	return v1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: namespace, Name: name}
}

// last reports why the daemon ends, and returns when that is on record: events
// that are sent in the background would end with the process.
func (r *recorder) last(ctx context.Context, reason, action, note string) {
	if r.sender == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastWord)
	defer cancel()
	if err := r.sender.create(ctx, newEvent(r.node, v1.EventTypeWarning, reason, action, note)); err != nil {
		klog.FromContext(ctx).Error(err, "Event was not sent", "reason", reason)
	}
}
