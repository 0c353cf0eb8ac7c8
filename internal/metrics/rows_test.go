package metrics

import (
	"net/netip"
	"testing"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/proxy"
)

// row returns a row that is reached from inside and outside, with endpoints
// elsewhere only.
func row(name string, f proxy.Family, edit ...func(*proxy.ServicePort)) *proxy.ServicePort {
	sp := &proxy.ServicePort{
		Key:             proxy.PortKey{ServicePortName: proxy.ServicePortName{Name: name, Protocol: proxy.TCP}, Family: f},
		Frontends:       []proxy.Frontend{{Kind: proxy.ClusterIP}, {Kind: proxy.NodePort}},
		UsableSomewhere: true,
	}
	for _, e := range edit {
		e(sp)
	}
	return sp
}

func internalLocal(sp *proxy.ServicePort) { sp.Internal = proxy.ScopeLocal }
func externalLocal(sp *proxy.ServicePort) { sp.External = proxy.ScopeLocal }
func inside(sp *proxy.ServicePort)        { sp.Frontends = sp.Frontends[:1] }
func nowhere(sp *proxy.ServicePort)       { sp.UsableSomewhere = false }

func here(sp *proxy.ServicePort) {
	sp.Local = []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:80"), Local: true}}
}

func TestNoLocalEndpoints(t *testing.T) {
	r := k8s.NewKubeRegistry()
	m := newMetrics(t, r)
	step := func(name string, d *proxy.Delta, internal4, external4, internal6, external6 float64) {
		t.Helper()
		m.Applied(d)
		t.Log(name)
		wantValues(t, r, "sync_proxy_rules_no_local_endpoints_total", map[string]float64{
			"IPv4 internal": internal4, "IPv4 external": external4, "IPv6 internal": internal6, "IPv6 external": external6,
		})
	}
	upsert := func(old, cur *proxy.ServicePort) *proxy.Delta {
		return &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}}
	}
	step("nothing is a value too", &proxy.Delta{}, 0, 0, 0, 0)
	step("policy Cluster", upsert(nil, row("a", proxy.IPv4)), 0, 0, 0, 0)
	a := row("a", proxy.IPv4, internalLocal)
	step("internal", upsert(row("a", proxy.IPv4), a), 1, 0, 0, 0)
	b := row("b", proxy.IPv4, internalLocal, externalLocal)
	step("both", upsert(nil, b), 2, 1, 0, 0)
	step("another family", upsert(nil, row("b", proxy.IPv6, externalLocal)), 2, 1, 0, 1)
	step("nobody comes from outside", upsert(nil, row("c", proxy.IPv4, externalLocal, inside)), 2, 1, 0, 1)
	step("no endpoints at all", upsert(nil, row("d", proxy.IPv4, externalLocal, nowhere)), 2, 1, 0, 1)
	step("endpoints came", upsert(b, row("b", proxy.IPv4, internalLocal, externalLocal, here)), 1, 0, 0, 1)
	step("and went", upsert(row("b", proxy.IPv4, internalLocal, externalLocal, here), b), 2, 1, 0, 1)
	step("row went", &proxy.Delta{Removes: []*proxy.ServicePort{b, a}}, 0, 0, 0, 1)
}
