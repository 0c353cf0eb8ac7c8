package app

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
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
	actionStart          = "StartKubeProxy"
	actionListen         = "Listen"
	actionTune           = "Tune"
	eventNamespaceOfNode = "" // Nodes have none
)

// recorder tells the cluster what happens on this node. Without a cluster the
// log must do.
type recorder struct {
	events events.EventRecorder // nil: nobody listens
	node   *v1.ObjectReference
}

// newRecorder returns a recorder that sends until ctx ends. A client of nil
// means that there is no cluster.
func newRecorder(ctx context.Context, client kubernetes.Interface, node string) *recorder {
	r := &recorder{node: &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, Namespace: eventNamespaceOfNode, UID: types.UID(node)}}
	if client == nil {
		return r
	}
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
		r.events.Eventf(r.node, nil, v1.EventTypeWarning, reason, action, "%s", fmt.Sprintf(format, args...))
	}
}

// warnService reports what did not work for a Service.
func (r *recorder) warnService(namespace, name, reason, action, note string) {
	if r.events != nil {
		service := &v1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: namespace, Name: name}
		r.events.Eventf(service, nil, v1.EventTypeWarning, reason, action, "%s", note)
	}
}
