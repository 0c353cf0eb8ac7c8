package metrics

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8s "k8s.io/component-base/metrics"
)

var errSync = errors.New("the kernel was busy")

// sliceAt returns a slice that names a trigger.
func sliceAt(at time.Time, t discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Annotations: map[string]string{v1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}},
		AddressType: t,
	}
}

func slice4(at time.Time) *discoveryv1.EndpointSlice { return sliceAt(at, discoveryv1.AddressTypeIPv4) }

// watched is metrics in fake time.
type watched struct {
	*Metrics
	t *testing.T
	r k8s.KubeRegistry
}

func watch(t *testing.T, do func(w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := k8s.NewKubeRegistry()
		w := &watched{newMetrics(t, r), t, r}
		time.Sleep(time.Minute)
		do(w)
	})
}

// wantSamples checks how many triggers were measured, and their sum in seconds.
func (w *watched) wantSamples(family string, count uint64, sum float64) {
	w.t.Helper()
	gathered, err := w.r.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	var gotCount uint64
	var gotSum float64
	for _, f := range gathered {
		if f.GetName() != "kubeproxy_network_programming_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == family {
				gotCount, gotSum = m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
			}
		}
	}
	if gotCount != count || math.Abs(gotSum-sum) > 1e-6 {
		w.t.Errorf("%s: %d samples of %v s; want %d of %v s", family, gotCount, gotSum, count, sum)
	}
}

func TestTriggerToEndOfSync(t *testing.T) {
	watch(t, func(w *watched) {
		at := time.Now()
		time.Sleep(2 * time.Second) // Far away, in a controller and in the API server.
		w.EndpointSliceSeen(nil, slice4(at), 1)
		time.Sleep(time.Second)
		w.Began()
		time.Sleep(500 * time.Millisecond)
		w.wantSamples("IPv4", 0, 0)
		w.Done(false, nil)
		w.wantSamples("IPv4", 1, 3.5)
		w.wantSamples("IPv6", 0, 0)
		w.Began()
		w.Done(true, nil)
		w.wantSamples("IPv4", 1, 3.5)
	})
}

func TestEachTriggerIsASample(t *testing.T) {
	watch(t, func(w *watched) {
		first := slice4(time.Now())
		time.Sleep(time.Second)
		second := slice4(time.Now())
		w.EndpointSliceSeen(nil, first, 1)
		w.EndpointSliceSeen(first, second, 1)
		w.EndpointSliceSeen(nil, sliceAt(time.Now(), discoveryv1.AddressTypeIPv6), 2)
		time.Sleep(time.Second)
		w.Began()
		w.Done(false, nil)
		w.wantSamples("IPv4", 2, 3)
		w.wantSamples("IPv6", 1, 1)
	})
}

func TestTriggersOutliveFailedSyncs(t *testing.T) {
	watch(t, func(w *watched) {
		w.EndpointSliceSeen(nil, slice4(time.Now()), 1)
		w.Began()
		w.Done(false, errSync)
		w.wantSamples("IPv4", 0, 0)
		time.Sleep(10 * time.Second)
		w.Began()
		w.Done(true, errSync)
		time.Sleep(10 * time.Second)
		w.Began()
		w.Done(true, nil)
		w.wantSamples("IPv4", 1, 20)
	})
}

func TestTriggerDuringASyncWaitsForTheNext(t *testing.T) {
	watch(t, func(w *watched) {
		w.Began()
		w.EndpointSliceSeen(nil, slice4(time.Now()), 1)
		time.Sleep(time.Second)
		w.Done(false, nil)
		w.wantSamples("IPv4", 0, 0)
		w.Began()
		time.Sleep(time.Second)
		w.Done(false, nil)
		w.wantSamples("IPv4", 1, 2)
	})
}

func TestEventsWithoutATrigger(t *testing.T) {
	watch(t, func(w *watched) {
		now := time.Now()
		known := slice4(now)
		for name, event := range map[string]struct {
			old, cur *discoveryv1.EndpointSlice
			pending  int
		}{
			"older than the process": {nil, slice4(now.Add(-time.Hour)), 1},
			"a deletion":             {known, nil, 1},
			"a resync":               {known, known.DeepCopy(), 1},
			"nothing came of it":     {nil, slice4(now), 0},
			"no annotation":          {nil, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}, 1},
			"not an IP family":       {nil, sliceAt(now, discoveryv1.AddressTypeFQDN), 1},
			"no time": {nil, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{v1.EndpointsLastChangeTriggerTime: "yesterday"},
			}}, 1},
		} {
			w.EndpointSliceSeen(event.old, event.cur, event.pending)
			w.Began()
			w.Done(false, nil)
			t.Log(name)
			w.wantSamples("IPv4", 0, 0)
		}
	})
}

func TestTriggerFromTheFuture(t *testing.T) {
	watch(t, func(w *watched) {
		w.EndpointSliceSeen(nil, slice4(time.Now().Add(time.Second)), 1)
		w.Began()
		w.Done(false, nil)
		w.wantSamples("IPv4", 1, 0)
	})
}

func TestTriggersAreBounded(t *testing.T) {
	watch(t, func(w *watched) {
		slice := slice4(time.Now())
		for n := range maxTriggers + 10 {
			w.EndpointSliceSeen(nil, slice, 1)
			if n%1000 == 0 {
				w.Began()
				w.Done(true, errSync)
			}
		}
		w.Began()
		w.Done(true, nil)
		w.wantSamples("IPv4", maxTriggers, 0)
	})
}

func TestPendingChanges(t *testing.T) {
	watch(t, func(w *watched) {
		want := func(slices, services float64) {
			t.Helper()
			wantValues(t, w.r, "sync_proxy_rules_endpoint_changes_pending", map[string]float64{"": slices})
			wantValues(t, w.r, "sync_proxy_rules_service_changes_pending", map[string]float64{"": services})
		}
		w.EndpointSliceSeen(nil, slice4(time.Now()), 1)
		w.EndpointSliceSeen(nil, slice4(time.Now()), 2)
		w.EndpointSliceSeen(nil, slice4(time.Now()), 2) // One of the two again.
		w.ServiceSeen(1)
		want(2, 1)
		w.Began()
		want(2, 1)
		w.ServiceSeen(3)
		want(2, 4)
		w.Done(false, errSync)
		want(2, 4)
		w.Began()
		w.EndpointSliceSeen(nil, nil, 1)
		w.Done(true, nil)
		want(1, 0)
		wantValues(t, w.r, "sync_proxy_rules_endpoint_changes_total", map[string]float64{"": 4})
		wantValues(t, w.r, "sync_proxy_rules_service_changes_total", map[string]float64{"": 2})
	})
}

func TestSyncTimes(t *testing.T) {
	watch(t, func(w *watched) {
		both := func(at time.Time) map[string]float64 {
			s := float64(at.UnixNano()) / 1e9
			return map[string]float64{"IPv4": s, "IPv6": s}
		}
		queued := time.Now()
		w.Queued()
		time.Sleep(time.Second)
		w.Began()
		time.Sleep(time.Second)
		w.Done(true, errSync)
		wantValues(t, w.r, "sync_proxy_rules_last_timestamp_seconds", map[string]float64{})
		w.Began()
		time.Sleep(time.Second)
		w.Done(true, nil)
		wantValues(t, w.r, "sync_proxy_rules_last_timestamp_seconds", both(time.Now()))
		wantValues(t, w.r, "sync_proxy_rules_last_queued_timestamp_seconds", both(queued))
		wantValues(t, w.r, "sync_full_proxy_rules_duration_seconds", map[string]float64{"IPv4": 2, "IPv6": 2})
		wantValues(t, w.r, "sync_proxy_rules_duration_seconds", map[string]float64{"IPv4": 2, "IPv6": 2})
		wantValues(t, w.r, "sync_partial_proxy_rules_duration_seconds", map[string]float64{})
	})
}
