package iptables

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// watched runs Watch over the fake. The function it returns waits for two polls and returns
// what Watch has reported since its last call.
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

// hurt changes the tables as another process would.
func hurt(t *testing.T, fake *ipttest.Fake, input string) {
	t.Helper()
	if err := fake.Restore(t.Context(), []byte(input)); err != nil {
		t.Fatal(err)
	}
}

// TestWatch checks that changes by another process to our rules are reported once, and that
// neither our own changes nor those to other rules are.
func TestWatch(t *testing.T) {
	nodePortRule := `-p tcp -m comment --comment "default/svc-1:http" -m tcp --dport 1025 -j ` + externalChain + hash(plainRow(1, 1, 0).Key, "")
	const (
		portmap = "*nat\n:CNI-HOSTPORT-SETMARK - [0:0]\n-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ\n-A CNI-HOSTPORT-SETMARK -j KUBE-SERVICES\nCOMMIT\n"
		mark    = "-j MARK --set-xmark 0x4000/0x4000"
	)
	tests := []struct {
		name, input string
		want        []string
		before      string // what another process wrote before the last Sync
	}{
		{"nat flushed", "*nat\n-F PREROUTING\nCOMMIT\n", []string{"rules in these chains, or jumps to them, are missing: nat KUBE-SERVICES (IPv4)"}, ""},
		{"canary gone", "*mangle\n-X KUBE-PROXY-CANARY\nCOMMIT\n", []string{"chains are missing: mangle KUBE-PROXY-CANARY (IPv4)"}, ""},
		{"shared chain flushed", "*nat\n-F KUBE-SERVICES\nCOMMIT\n", []string{"rules in these chains, or jumps to them, are missing: nat KUBE-NODEPORTS, nat KUBE-SERVICES, nat the chains of Services (IPv4)"}, ""},
		{"one rule deleted", "*nat\n-D KUBE-NODEPORTS " + nodePortRule + "\nCOMMIT\n", []string{"rules in these chains, or jumps to them, are missing: nat KUBE-NODEPORTS, nat the chains of Services (IPv4)"}, ""},
		{"a Service's chain flushed", "*nat\n-F " + clusterChain + hash(plainRow(1, 1, 0).Key, "") + "\nCOMMIT\n", []string{"rules in these chains, or jumps to them, are missing: nat the chains of Services (IPv4)"}, ""},
		{
			"one rule replaced", "*nat\n-D KUBE-NODEPORTS " + nodePortRule + "\n-A KUBE-NODEPORTS " + strings.Replace(nodePortRule, "1025", "1026", 1) + "\nCOMMIT\n",
			[]string{"rules differ from those that were written: nat KUBE-NODEPORTS (IPv4)"},
			"",
		},
		{"one rule added", "*nat\n-I KUBE-SERVICES -j RETURN\nCOMMIT\n", []string{"rules differ from those that were written: nat KUBE-SERVICES (IPv4)"}, ""},
		{
			"a rule added to a Service's chain", "*nat\n-I " + clusterChain + hash(plainRow(1, 1, 0).Key, "") + " -j RETURN\nCOMMIT\n",
			[]string{"rules differ from those that were written: nat the chains of Services (IPv4)"},
			"",
		},
		{"others' rules", "*nat\n:THEIRS - [0:0]\n-A PREROUTING -j THEIRS\nCOMMIT\n", nil, ""},
		{"another's jumps to our chains", "*nat\n-F CNI-HOSTPORT-SETMARK\nCOMMIT\n", nil, portmap},
		{
			"our rule, beside another's jump", "*nat\n-D KUBE-MARK-MASQ " + mark + "\nCOMMIT\n",
			[]string{"rules differ from those that were written: nat KUBE-MARK-MASQ (IPv4)"},
			portmap,
		},
		{
			"our jump, beside another's", "*nat\n-D PREROUTING " + jumps[chainRef{nat, "PREROUTING"}][0] + "\nCOMMIT\n",
			[]string{"rules differ from those that were written: nat PREROUTING (IPv4)"},
			portmap,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, fake := faked()
				noticed := watched(t, d)
				proxytest.MustSync(t, d, plainState(3))
				if tt.before != "" {
					hurt(t, fake, tt.before)
					noticed()
					proxytest.MustSync(t, d, plainState(3))
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
				proxytest.MustSync(t, d, plainState(3))
				if got := noticed(); got != nil {
					t.Errorf("after the repair: %q", got)
				}
			})
		})
	}
}

// TestWatchWhileWeWrite has another process replace a rule while our own changes come faster
// than the tables can be saved: then Watch asks for a Sync.
func TestWatchWhileWeWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, fake := faked()
		proxytest.MustSync(t, d, plainState(3))
		n := 0
		d.families[0].programs = &besideSave{fake, func() {
			n++
			if err := proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(8, 1+n%2, 0)}}}); err != nil {
				t.Error(err)
			}
		}}
		ctx, stop := context.WithTimeout(t.Context(), 2*saveAttempts*pollInterval)
		defer stop()
		missed := 0
		hurt(t, fake, "*nat\n-I KUBE-SERVICES -j RETURN\nCOMMIT\n")
		if err := d.Watch(ctx, func() { missed++ }, func(what string) { t.Error(what) }); err != nil || missed != 1 || n != saveAttempts {
			t.Errorf("asked for %d Syncs after %d saves, error %v; want 1 after %d", missed, n, err, saveAttempts)
		}
	})
}

// besideSave are tables that we change whenever they are saved.
type besideSave struct {
	*ipttest.Fake
	change func()
}

func (b *besideSave) Save(ctx context.Context) ([]ipt.Table, error) {
	defer b.change()
	return b.Fake.Save(ctx)
}

// TestWatchBesideApply checks that a flush is reported even if a change of ours comes between
// it and the next poll.
func TestWatchBesideApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, fake := faked()
		proxytest.MustSync(t, d, plainState(3))
		noticed := watched(t, d)
		hurt(t, fake, "*filter\n-F FORWARD\nCOMMIT\n")
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(8, 2, 0)}}})
		if got := noticed(); len(got) != 1 {
			t.Errorf("noticed %q, want one", got)
		}
	})
}

// afterRestore are tables that another process changes during our restore: after it was
// committed, but before we read the stamp.
type afterRestore struct {
	*ipttest.Fake
	hurt func()
}

func (b *afterRestore) Restore(ctx context.Context, input []byte) error {
	err := b.Fake.Restore(ctx, input)
	if b.hurt != nil {
		b.hurt()
		b.hurt = nil
	}
	return err
}

// TestWatchDuringRestore checks that a flush during our restore is reported.
func TestWatchDuringRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, fake := faked()
		tables := &afterRestore{Fake: fake}
		d.families[0].programs = tables
		proxytest.MustSync(t, d, plainState(3))
		noticed := watched(t, d)
		tables.hurt = func() { hurt(t, fake, "*nat\n-F KUBE-SERVICES\nCOMMIT\n") }
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(8, 2, 0)}}})
		if got := noticed(); len(got) != 1 {
			t.Errorf("noticed %q, want one", got)
		}
	})
}

// TestSyncBesideAnotherWriter has another process replace a rule after Sync has saved the
// tables, which leaves the number of rules unchanged. Sync must compare once more.
func TestSyncBesideAnotherWriter(t *testing.T) {
	d, fake := faked()
	tables := &afterRestore{Fake: fake}
	d.families[0].programs = tables
	proxytest.MustSync(t, d, plainState(3))
	want := saved(t, d)
	tables.hurt = func() {
		hurt(t, fake, "*nat\n-F KUBE-MARK-MASQ\n-A KUBE-MARK-MASQ -j ACCEPT\nCOMMIT\n")
	}
	hurt(t, fake, "*nat\n-F KUBE-POSTROUTING\nCOMMIT\n") // so that there is something to restore
	proxytest.MustSync(t, d, plainState(3))
	if diff := cmp.Diff(want, saved(t, d)); diff != "" {
		t.Errorf("before and after mismatch (-want +got):\n%s", diff)
	}
}

// TestUsesFollowSteps checks that Apply counts uses as the kernel does, so that our changes
// and those of other processes are not mistaken for each other.
func TestUsesFollowSteps(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		s := everyState()
		proxytest.MustSync(t, d, s)
		node := *s.Node
		node.MasqueradeAll, node.NodePorts = true, node.NodePorts[:1]
		gone, changed := everyRow(), plainRow(2, 4, 3)
		changed.Affinity = time.Minute
		check := &proxy.HealthCheck{Key: proxy.HealthCheckKey{Namespace: "x", Name: "y"}, Port: 30001}
		for _, delta := range []*proxy.Delta{
			{Upserts: []proxy.Upsert{{New: plainRow(8, 2, 0)}, {Old: s.Rows[changed.Key], New: changed}}},
			{Removes: []*proxy.ServicePort{gone}, HealthChecks: []proxy.HealthCheckChange{{New: check}}},
			{Node: &node, CIDRs: &[]netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}},
			{Upserts: []proxy.Upsert{{New: everyRow()}}, HealthChecks: []proxy.HealthCheckChange{{Old: check}}},
		} {
			proxytest.MustApply(t, d, delta)
			for _, f := range d.families {
				have, err := f.kernelUses(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(f.uses, have, cmp.AllowUnexported(chainRef{})); diff != "" {
					t.Errorf("%v: uses after a step (-counted +the kernel's):\n%s", f.Family, diff)
				}
				if f.foreignSeen != f.foreign {
					t.Errorf("%v: our own step is counted as a change by another process", f.Family)
				}
			}
		}
	})
}

// TestSaveBesideSync checks that a save for Watch that a Sync overtakes is discarded: the
// checksums are those of the Sync then, which has not listed all rules yet.
func TestSaveBesideSync(t *testing.T) {
	d, _ := synced(t, 3)
	f, checker := d.families[0], saveChecker{saved: make(chan *savedTables, 1)}
	f.contentsUnverified = true
	s := checker.begin(f)
	if s == nil {
		t.Fatal("no save although rules are not verified")
	}
	if err := f.beginSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	checker.save(t.Context(), s)
	if what, err := checker.compare(<-checker.saved, func() { t.Error("asked for a Sync") }); what != "" || err != nil {
		t.Errorf("reported %q, error %v; want nothing", what, err)
	}
}
