package iptables

import (
	"testing"

	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestParts wants a large state to be written in parts that are small, that keep
// a row's chains together, and that put what leads to chains after them.
func TestParts(t *testing.T) {
	const services, each = 2000, 2 // chains
	d, fake := synced(t, 1)
	delta := &proxy.Delta{}
	for i := 1; i < services; i++ {
		delta.Upserts = append(delta.Upserts, proxy.Upsert{New: plainRow(i, 10, 0)})
	}
	f := d.families[0]
	parts := d.step(f, delta, d.after(delta)).parts(f.most)
	if want := services*each/maxChains + 1; len(parts) < want {
		t.Errorf("%d parts, want at least %d", len(parts), want)
	}
	seen := map[string]int{}
	for i, p := range parts {
		if n := len(p.whole); n > maxChains+each {
			t.Errorf("part %d has %d chains, want about %d", i, n, maxChains)
		}
		for _, w := range p.whole {
			if at, ok := seen[w.owner.Name]; ok && at != i {
				t.Errorf("chains of %v are in parts %d and %d", w.owner, at, i)
			}
			seen[w.owner.Name] = i
		}
		if p.shared != nil && i != len(parts)-1 {
			t.Errorf("part %d of %d leads to chains of later ones", i, len(parts))
		}
	}
	if err := proxytest.Apply(t.Context(), d, delta); err != nil {
		t.Fatal(err)
	}
	fake.Reset()
	if err := proxytest.Sync(t.Context(), d, plainState(services)); err != nil {
		t.Fatal(err)
	}
	if c := fake.Reset(); c.Restores != 0 {
		t.Errorf("after a step in parts Sync still restores %d lines", c.Lines)
	}
}

// TestPartsGo does so when almost everything goes.
func TestPartsGo(t *testing.T) {
	const services, each = 2000, 2 // chains
	d, fake := synced(t, services)
	if err := proxytest.Sync(t.Context(), d, plainState(2)); err != nil {
		t.Fatal(err)
	}
	if c := fake.Reset(); c.Restores < 2*(services-2)*each/maxChains {
		t.Errorf("%d restores for the end of %d chains", c.Restores, (services-2)*each)
	}
	if err := proxytest.Sync(t.Context(), d, plainState(2)); err != nil {
		t.Fatal(err)
	}
	if c := fake.Reset(); c.Restores != 0 {
		t.Errorf("a second Sync restores %d lines", c.Lines)
	}
}

// TestReportsRules wants the number of rules that are ours to be right after
// steps: as a Sync counts them.
func TestReportsRules(t *testing.T) {
	d, _ := faked()
	owned := func(table string) float64 {
		return proxytest.Values(t.Context(), d, "sync_proxy_rules_iptables_total")[table+" IPv4"]
	}
	written := func(table string) float64 {
		return proxytest.Values(t.Context(), d, "sync_proxy_rules_iptables_last")[table+" IPv4"]
	}
	s := everyState()
	if err := proxytest.Sync(t.Context(), d, s); err != nil {
		t.Fatal(err)
	}
	delta := &proxy.Delta{
		Upserts: []proxy.Upsert{{New: plainRow(30, 4, 0)}, {Old: plainRow(3, 10, 0), New: plainRow(3, 0, 0)}},
		Removes: []*proxy.ServicePort{everyRow()},
	}
	if err := proxytest.Apply(t.Context(), d, delta); err != nil {
		t.Fatal(err)
	}
	stepped := map[string]float64{nat: owned(nat), filter: owned(filter)}
	if written(nat) == 0 || written(nat) >= owned(nat) {
		t.Errorf("a step wrote %v rules of %v in nat", written(nat), owned(nat))
	}
	s.Apply(delta)
	if err := proxytest.Sync(t.Context(), d, s); err != nil {
		t.Fatal(err)
	}
	for table, n := range stepped {
		if owned(table) != n || n == 0 {
			t.Errorf("table %s: %v rules after steps, %v after a Sync", table, n, owned(table))
		}
	}
}
