package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestParts checks that a large state is written in small parts, in an order in which a chain
// exists before anything jumps to it, with the jumps from built-in chains last.
func TestParts(t *testing.T) {
	const services, each = 2000, 2 // chains
	d, fake := synced(t, 1)
	delta := &proxy.Delta{}
	for i := 1; i < services; i++ {
		delta.Upserts = append(delta.Upserts, proxy.Upsert{New: plainRow(i, 10, 0)})
	}
	parts := &recorder{Interface: fake}
	d.families[0].programs = parts
	proxytest.MustApply(t, d, delta)
	if want := services * each / maxChains(ipt.NFT); len(parts.inputs) < want {
		t.Errorf("%d parts, want at least %d", len(parts.inputs), want)
	}
	for i, input := range parts.inputs {
		if n := strings.Count(input, "\n:"); n > maxChains(ipt.NFT) {
			t.Errorf("part %d has %d chains, want at most %d", i, n, maxChains(ipt.NFT))
		}
		if strings.Contains(input, " "+kubeServices+" ") && i != len(parts.inputs)-1 {
			t.Errorf("part %d of %d jumps to chains of later parts", i, len(parts.inputs))
		}
	}
	fake.Reset()
	proxytest.MustSync(t, d, plainState(services))
	if c := fake.Reset(); c.Restores != 0 {
		t.Errorf("after a step in parts Sync still restores %d lines", c.Lines)
	}
}

// TestPartsOverOthers does the same where another proxy has left chains of the same names with
// other rules.
func TestPartsOverOthers(t *testing.T) {
	const services = 2000
	d, fake := faked()
	left := "*nat\n"
	for _, sp := range plainState(services).Rows {
		left += declaration(chainRef{nat, clusterChain + hash(sp.Key, "")}) + "\n"
	}
	hurt(t, fake, left+"COMMIT\n")
	proxytest.MustSync(t, d, plainState(services))
	wantNothingToWrite(t, d, plainState(services))
}

// TestRemovalInParts removes almost everything.
func TestRemovalInParts(t *testing.T) {
	const services, each = 2000, 2 // chains
	d, fake := synced(t, services)
	proxytest.MustSync(t, d, plainState(2))
	if c := fake.Reset(); c.Restores < (services-2)*each/maxChains(ipt.NFT) {
		t.Errorf("%d restores to remove %d chains", c.Restores, (services-2)*each)
	}
	proxytest.MustSync(t, d, plainState(2))
	if c := fake.Reset(); c.Restores != 0 {
		t.Errorf("a second Sync restores %d lines", c.Lines)
	}
}

// TestRuleCounts checks that the counts of rules after Apply are those of a Sync.
func TestRuleCounts(t *testing.T) {
	d, _ := faked()
	owned := func(table string) float64 {
		return proxytest.Values(t.Context(), d, "sync_proxy_rules_iptables_total")[table+" IPv4"]
	}
	written := func(table string) float64 {
		return proxytest.Values(t.Context(), d, "sync_proxy_rules_iptables_last")[table+" IPv4"]
	}
	s := everyState()
	proxytest.MustSync(t, d, s)
	delta := &proxy.Delta{
		Upserts: []proxy.Upsert{{New: plainRow(30, 4, 0)}, {Old: plainRow(3, 10, 0), New: plainRow(3, 0, 0)}},
		Removes: []*proxy.ServicePort{everyRow()},
	}
	proxytest.MustApply(t, d, delta)
	stepped := map[string]float64{nat: owned(nat), filter: owned(filter)}
	if written(nat) == 0 || written(nat) >= owned(nat) {
		t.Errorf("a step wrote %v rules of %v in nat", written(nat), owned(nat))
	}
	s.Apply(delta)
	proxytest.MustSync(t, d, s)
	for table, n := range stepped {
		if owned(table) != n || n == 0 {
			t.Errorf("table %s: %v rules after steps, %v after a Sync", table, n, owned(table))
		}
	}
}

// TestForwardedOrRefused adds the first endpoints of a row and removes the last. Tables are
// committed one by one, but at no time may a connection be neither forwarded nor refused.
func TestForwardedOrRefused(t *testing.T) {
	d, fake := synced(t, 1)
	parts := &recorder{Interface: fake}
	d.families[0].programs = parts
	full := plainRow(0, 10, 0)
	empty := *full
	empty.Cluster, empty.Local = nil, nil
	forwarded, refused := true, false
	for _, step := range []proxy.Upsert{{Old: full, New: &empty}, {Old: &empty, New: full}} {
		parts.inputs = nil
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{step}})
		for table := range strings.SplitSeq(strings.Join(parts.inputs, ""), "COMMIT\n") {
			for line := range strings.Lines(table) {
				comes := strings.HasPrefix(line, "-A KUBE-SERVICES") || strings.HasPrefix(line, "-I KUBE-SERVICES")
				switch goes := strings.HasPrefix(line, "-D KUBE-SERVICES"); {
				case !comes && !goes:
				case strings.HasPrefix(table, "*nat"):
					forwarded = comes
				default:
					refused = comes
				}
			}
			if !forwarded && !refused {
				t.Errorf("neither forwarded nor refused after\n%s", table)
			}
		}
		if (len(step.New.Cluster) > 0) != forwarded || forwarded == refused {
			t.Errorf("in the end forwarded %v, refused %v", forwarded, refused)
		}
	}
}

// lockedThen are tables whose lock another program takes after the first table of a restore.
type lockedThen struct{ ipt.Interface }

func (l lockedThen) Restore(ctx context.Context, input []byte) error {
	first, rest, _ := bytes.Cut(input, []byte("COMMIT\n"))
	if len(rest) == 0 {
		return ipt.ErrLocked
	}
	return cmp.Or(l.Interface.Restore(ctx, append(bytes.Clone(first), "COMMIT\n"...)), ipt.ErrLocked)
}

// TestLockTimeout checks that a Sync is requested if a restore of several tables does not get
// the lock for one of them: the legacy programs take it for each table. A restore of a single
// table has changed nothing then.
func TestLockTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		next     *proxy.ServicePort
		needSync bool
	}{
		"one table":  {plainRow(0, 10, 5), false},
		"two tables": {plainRow(0, 0, 0), true},
	} {
		t.Run(name, func(t *testing.T) {
			d, fake := synced(t, 2)
			d.families[0].programs = lockedThen{fake}
			step := &proxy.Delta{Upserts: []proxy.Upsert{{Old: plainRow(0, 10, 0), New: tt.next}}}
			err := proxytest.Apply(t.Context(), d, step)
			if !errors.Is(err, ipt.ErrLocked) || errors.Is(err, proxy.ErrNeedSync) != tt.needSync {
				t.Errorf("error %v; want the lock's, and a Sync to be needed: %t", err, tt.needSync)
			}
			d.families[0].programs = fake
			want := plainState(2)
			want.Apply(step)
			if tt.needSync {
				err = proxytest.Sync(t.Context(), d, want)
			} else {
				err = proxytest.Apply(t.Context(), d, step)
			}
			if err != nil {
				t.Fatal(err)
			}
			wantNothingToWrite(t, d, want)
		})
	}
}
