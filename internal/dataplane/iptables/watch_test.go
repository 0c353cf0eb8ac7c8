package iptables

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// watched runs Watch over memory and returns what it has noticed when asked,
// after the time that a look may take to come.
func watched(t *testing.T, d *Dataplane) (noticed func() []string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var seen []string
	done := make(chan error)
	go func() {
		done <- d.Watch(ctx, func() { t.Error("missed something") }, func(what string) { seen = append(seen, what) })
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	return func() []string {
		<-time.After(2 * pollInterval)
		synctest.Wait()
		now := seen
		seen = nil
		return now
	}
}

// hurt changes the tables as somebody else would.
func hurt(t *testing.T, fake *ipt.Fake, input string) {
	t.Helper()
	if err := fake.Restore(t.Context(), []byte(input)); err != nil {
		t.Fatal(err)
	}
}

// TestWatch wants a flush by somebody else to be noticed, once, and neither our
// own changes nor what others do beside us.
func TestWatch(t *testing.T) {
	tests := []struct {
		name, input string
		want        []string
	}{
		{"nat flushed", "*nat\n-F PREROUTING\nCOMMIT\n", []string{"a rule of chain PREROUTING in table nat is gone, IPv4"}},
		{"canary gone", "*mangle\n-X KUBE-PROXY-CANARY\nCOMMIT\n", []string{"chain KUBE-PROXY-CANARY of table mangle is gone, IPv4"}},
		{"others' rules", "*nat\n:THEIRS - [0:0]\n-A PREROUTING -j THEIRS\nCOMMIT\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, fake := faked()
				noticed := watched(t, d)
				if err := d.Sync(t.Context(), plainState(3)); err != nil {
					t.Fatal(err)
				}
				if got := noticed(); got != nil {
					t.Errorf("after our own Sync: %q", got)
				}
				hurt(t, fake, tt.input)
				if got := noticed(); !slices.Equal(got, tt.want) {
					t.Errorf("noticed %q, want %q", got, tt.want)
				}
				if got := noticed(); got != nil {
					t.Errorf("noticed twice: %q", got)
				}
				if err := d.Sync(t.Context(), plainState(3)); err != nil {
					t.Fatal(err)
				}
				if got := noticed(); got != nil {
					t.Errorf("after the repair: %q", got)
				}
			})
		})
	}
}

// TestWatchBesideApply wants a flush to be noticed also when a change of ours
// comes between it and the look.
func TestWatchBesideApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, fake := faked()
		if err := d.Sync(t.Context(), plainState(3)); err != nil {
			t.Fatal(err)
		}
		noticed := watched(t, d)
		hurt(t, fake, "*filter\n-F FORWARD\nCOMMIT\n")
		if err := d.Apply(t.Context(), &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(8, 2, 0)}}}); err != nil {
			t.Fatal(err)
		}
		if got := noticed(); len(got) != 1 {
			t.Errorf("noticed %q, want one", got)
		}
	})
}
