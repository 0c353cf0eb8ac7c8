package app

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/engine"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ct/cttest"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
	"sluice/internal/traffic"
)

// TestConntrackMetrics checks the metrics with and without connection tracking.
func TestConntrackMetrics(t *testing.T) {
	values := func(conntrackUsage *statusapi.Tracking) map[string]float64 {
		got := map[string]float64{}
		for _, m := range conntrackMetrics(func() *statusapi.Tracking { return conntrackUsage }) {
			m.Read(func(v float64, _ ...string) { got[m.Name] = v })
		}
		return got
	}
	want := map[string]float64{"conntrack_entries": 12, "conntrack_entries_limit": 262144}
	if diff := cmp.Diff(want, values(&statusapi.Tracking{Entries: 12, Limit: 262144})); diff != "" {
		t.Errorf("metrics mismatch (-want +got):\n%s", diff)
	}
	if got := values(nil); len(got) != 0 {
		t.Errorf("metrics %v without connection tracking", got)
	}
}

// TestDoubtsMetric checks that kinds without a doubt are 0.
func TestDoubtsMetric(t *testing.T) {
	got := map[string]float64{}
	doubts := []engine.Doubt{{Kind: engine.ServicePortsRefused, Object: "a"}, {Kind: engine.ServicePortsRefused, Object: "b"}}
	for _, n := range []int{0, 2} {
		doubtsMetric(func() []engine.Doubt { return doubts[:n] }).Read(func(v float64, labels ...string) { got[labels[0]] = v })
		if len(got) != len(engine.DoubtKinds) || got[string(engine.ServicePortsRefused)] != float64(n) {
			t.Errorf("%v, want every kind, and %d refusals", got, n)
		}
	}
}

// TestStatusTraffic checks that the traffic of both families is added up.
func TestStatusTraffic(t *testing.T) {
	k := cttest.NewFake()
	c := traffic.New(traffic.Settings{Flows: k, Ends: k, LocalAddrs: func() ([]netip.Prefix, error) { return nil, nil }})
	d := &proxy.Delta{}
	for vip, endpoint := range map[string]string{"10.96.0.1:80": "10.1.0.1:80", "[fd96::1]:80": "[fd00::1]:80"} {
		at, to := netip.MustParseAddrPort(vip), netip.MustParseAddrPort(endpoint)
		d.Upserts = append(d.Upserts, proxy.Upsert{New: &proxy.ServicePort{
			Key: proxy.PortKey{
				ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "web", Port: "http", Protocol: proxy.TCP},
				Family:          proxy.FamilyOf(at.Addr()),
			},
			Frontends: []proxy.Frontend{{Addr: at}}, Cluster: []proxy.Endpoint{{Addr: to}},
		}})
		k.Add(ct.Flow{Protocol: 6, Orig: ct.Tuple{Dst: at}, Reply: ct.Tuple{Src: to}, Translated: true})
	}
	var keys []proxy.PortKey
	for _, u := range d.Upserts {
		keys = append(keys, u.New.Key)
	}
	c.Applied(&proxy.Node{}, d)
	one, two := uint64(1), uint64(2)
	line := func(endpoint string, n *uint64) statusapi.PortTraffic {
		return statusapi.PortTraffic{
			Namespace: "ns", Name: "web", Port: "http", Protocol: "TCP", Endpoint: endpoint,
			Traffic: statusapi.Traffic{Connections: n, Active: n},
		}
	}
	want := map[string]statusapi.PortTraffic{
		"": line("", &two), "10.1.0.1:80": line("10.1.0.1:80", &one), "[fd00::1]:80": line("[fd00::1]:80", &one),
	}
	all, counted, off := statusTraffic{c, ""}.All(t.Context(), true)
	ports, _, _ := statusTraffic{c, ""}.All(t.Context(), false)
	if counted.IsZero() || off != "" {
		t.Errorf("counted at %v, off: %q", counted, off)
	}
	for name, got := range map[string][]statusapi.PortTraffic{
		"all": append(ports, all...), "of": statusTraffic{c, ""}.Of(t.Context(), keys),
	} {
		byEndpoint := map[string]statusapi.PortTraffic{}
		for _, l := range got {
			byEndpoint[l.Endpoint] = l
		}
		if diff := cmp.Diff(want, byEndpoint); diff != "" || len(got) != len(want) {
			t.Errorf("%s: %d lines, mismatch (-want +got):\n%s", name, len(got), diff)
		}
	}
	if _, _, off := (statusTraffic{off: "why"}).All(t.Context(), false); off != "why" {
		t.Error("it does not say why nothing is counted")
	}
}
