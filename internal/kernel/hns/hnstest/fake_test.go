package hnstest_test

import (
	"errors"
	"net/netip"
	"testing"

	"sluice/internal/kernel/hns"
	"sluice/internal/kernel/hns/hnstest"
)

// TestRefusals wants an old version to refuse what it cannot do, and everything to
// be refused that a test asks for.
func TestRefusals(t *testing.T) {
	ctx, own := t.Context(), errors.New("the test's own")
	f := hnstest.NewFake(hns.Features{}, hns.Network{ID: "net", Name: "pods"})
	pod := hns.Endpoint{Network: "net", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}
	id, err := f.CreateEndpoint(ctx, pod)
	if err != nil {
		t.Fatal(err)
	}
	web := hns.LoadBalancer{VIP: netip.MustParseAddr("10.96.0.1"), Protocol: 6, ExternalPort: 80, InternalPort: 80, Endpoints: []string{id}}
	f.Refuse(web.VIP, own)
	_, refused := f.CreateLoadBalancer(ctx, web)
	f.Refuse(web.VIP, nil)
	lb, err := f.CreateLoadBalancer(ctx, web)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*hns.LoadBalancer){
		func(l *hns.LoadBalancer) { l.Flags = hns.DSR },
		func(l *hns.LoadBalancer) { l.Flags = hns.ByClient },
		func(l *hns.LoadBalancer) { l.VIP, l.Family6 = netip.MustParseAddr("fd00:96::1"), true },
	} {
		l := web
		l.ExternalPort = 81
		change(&l)
		if _, err := f.CreateLoadBalancer(ctx, l); !errors.Is(err, hns.ErrUnsupported) {
			t.Errorf("%+v: error %v, want %v", l, err, hns.ErrUnsupported)
		}
	}
	update := f.UpdateLoadBalancer(ctx, lb, web)
	f.Fail(own)
	_, failed := f.LoadBalancers(ctx)
	for err, want := range map[error]error{refused: own, update: hns.ErrUnsupported, failed: own} {
		if !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	}
	if count, done := f.Reset(); count["CreateLoadBalancer"] != 5 || count["LoadBalancers"] != 1 || len(done) != 7 {
		t.Errorf("counted %v, done %q", count, done)
	}
}
