package cluster

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/test/cluster/build"
	result "sluice/test/cluster/peers/figures"
	objects "sluice/test/cluster/peers/load"
	"sluice/test/cluster/peers/trial"
)

// TestPeers measures a tiny cluster, in both modes and with kube-proxy: it judges no
// figure, only that there is one of everything.
func TestPeers(t *testing.T) {
	size := result.Size{Services: 20, Endpoints: 2}
	l, err := objects.New(t.Context(), bed.ControlPlane, size, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clearLoad(context.Background(), l); err != nil {
			t.Error(err)
		}
	})
	builder, err := build.New(say)
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := builder.Own(t.Context(), builder.Module, "./peers", "peers")
	if err != nil {
		t.Fatal(err)
	}
	b := &trial.Bench{Cluster: bed, Watcher: watcher, Load: l, Log: func(line string) { t.Log(line) }, Limits: trial.Limits{
		ColdStart: deadline, Samples: 2, Budget: deadline, Patience: deadline,
		Idle: time.Second, Burst: 20 * time.Millisecond, Rates: []int{0, 50},
	}}
	if f := b.Floor(t.Context()); f.Missing != "" || f.Element == 0 || len(f.Watches) != len(b.Limits.Rates) {
		t.Errorf("floor: %+v", f)
	}
	for _, peer := range []trial.Peer{
		{Name: "sluice/nftables", Mode: "nftables"},
		{Name: "sluice/iptables", Mode: "iptables"},
		{Name: "kube-proxy/nftables", Mode: "nftables", KubeProxy: true},
	} {
		r := b.Run(t.Context(), peer)
		for stage, why := range r.Missing {
			t.Errorf("%s: no %s: %s", r.Peer, stage, why)
		}
		if t.Failed() {
			continue
		}
		if c := r.ColdStart; c.Answered != size.Services+2 || c.First > c.Every {
			t.Errorf("%s: cold start: %+v", r.Peer, c)
		}
		for _, c := range r.Changes {
			if len(c.Samples) != b.Limits.Samples {
				t.Errorf("%s: %d samples at %d/s, want %d", r.Peer, len(c.Samples), c.Rate, b.Limits.Samples)
			}
		}
		if d := r.DataPath; d.TCP.Made == 0 || d.UDP.Made == 0 || d.Bulk.Service == 0 {
			t.Errorf("%s: data path: %+v", r.Peer, d)
		}
		if x := r.Restart; x.Failed > 0 && !peer.KubeProxy {
			t.Errorf("%s: restart: %d of %d connections failed: %s", r.Peer, x.Failed, x.Asked, x.Error)
		}
	}
}

// clearLoad deletes all objects of a load; the namespace stays.
func clearLoad(ctx context.Context, l *objects.Load) error {
	services := l.Client.CoreV1().Services(objects.Namespace)
	list, err := services.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, svc := range list.Items {
		if err := services.Delete(ctx, svc.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	slices := l.Client.DiscoveryV1().EndpointSlices(objects.Namespace)
	return slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}
