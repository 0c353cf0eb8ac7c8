package iptables

import (
	"errors"
	"testing"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// synced returns a dataplane over a fake that has n Services.
func synced(t *testing.T, n int) (*Dataplane, *ipttest.Fake) {
	t.Helper()
	d, fake := faked()
	proxytest.MustSync(t, d, plainState(n))
	fake.Reset()
	return d, fake
}

// TestCosts checks that the cost of Apply depends on the change only, not on the number of
// Services, and that it saves nothing. Each change is of another Service.
func TestCosts(t *testing.T) {
	other := testNode()
	other.Zone = "elsewhere"
	tests := []struct {
		name  string
		delta func(n int) *proxy.Delta
		lines int
	}{
		{"an endpoint is replaced", func(int) *proxy.Delta {
			return &proxy.Delta{Upserts: []proxy.Upsert{{Old: plainRow(50, 10, 0), New: plainRow(50, 10, 1<<20)}}}
		}, 14}, // table, commit; a chain and its eleven rules
		{"an endpoint goes", func(int) *proxy.Delta {
			return &proxy.Delta{Upserts: []proxy.Upsert{{Old: plainRow(51, 10, 0), New: plainRow(51, 9, 0)}}}
		}, 13},
		{"a Service comes", func(n int) *proxy.Delta {
			return &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(n, 10, 0)}}}
		}, 22},
		{"a Service goes", func(int) *proxy.Delta {
			return &proxy.Delta{Removes: []*proxy.ServicePort{plainRow(52, 10, 0)}}
		}, 11},
		{"only conntrack is concerned", func(int) *proxy.Delta {
			return &proxy.Delta{Upserts: []proxy.Upsert{{Old: plainRow(53, 10, 0), New: plainRow(53, 10, 0)}}}
		}, 0},
		{"the node's zone changes", func(int) *proxy.Delta { return &proxy.Delta{Node: other} }, 0},
	}
	for _, n := range []int{100, proxytest.Many(10_000)} {
		d, fake := synced(t, n)
		for _, tt := range tests {
			if err := proxytest.Apply(t.Context(), d, tt.delta(n)); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if c := fake.Reset(); c.Lines != tt.lines || c.Saves != 0 || c.Looks != 0 || c.Restores > 1 {
				t.Errorf("%d Services, %s: %d lines, %d restores, %d saves; want %d lines, no save",
					n, tt.name, c.Lines, c.Restores, c.Saves, tt.lines)
			}
		}
	}
}

// TestCostOfRemovingMany checks that rules are deleted in the order in which they are in their
// chain. To delete a rule, the programs compare it with all rules before it: for 3,000 rules
// of a chain that takes the nft variant 0.4 s in this order, and 26 s in the opposite one.
func TestCostOfRemovingMany(t *testing.T) {
	const n = 1000
	d, fake := synced(t, 0)
	came, goes := &proxy.Delta{}, &proxy.Delta{}
	for i := range n {
		came.Upserts = append(came.Upserts, proxy.Upsert{New: plainRow(i, 1, 0)})
		goes.Removes = append(goes.Removes, plainRow(i, 1, 0))
	}
	for _, step := range []*proxy.Delta{came, goes} {
		proxytest.MustApply(t, d, step)
	}
	if c := fake.Reset(); c.Searched == 0 || c.Searched > 10*n {
		t.Errorf("%d rules were looked at to remove %d Services; want at most %d", c.Searched, n, 10*n)
	}
}

// TestSyncWithoutChanges checks that a Sync writes nothing if everything is as wanted, also
// after an Apply.
func TestSyncWithoutChanges(t *testing.T) {
	d, fake := synced(t, 1000)
	s := plainState(1000)
	delta := &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(1001, 3, 0)}, {Old: plainRow(7, 10, 0), New: plainRow(7, 0, 0)}}}
	proxytest.MustApply(t, d, delta)
	s.Apply(delta)
	fake.Reset()
	proxytest.MustSync(t, d, s)
	if c := fake.Reset(); c.Restores != 0 {
		t.Errorf("Sync restored %d lines although nothing differs", c.Lines)
	}
}

// TestLockHeld checks that Apply can be retried after another program has held the lock.
func TestLockHeld(t *testing.T) {
	d, fake := synced(t, 10)
	fake.Fail(ipt.ErrLocked)
	delta := &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(11, 3, 0)}}}
	if err := proxytest.Apply(t.Context(), d, delta); errors.Is(err, proxy.ErrNeedSync) || !errors.Is(err, ipt.ErrLocked) {
		t.Errorf("while the lock is held: %v", err)
	}
	fake.Fail(nil)
	if err := proxytest.Apply(t.Context(), d, delta); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
