package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/config"
	"sluice/internal/engine"
)

// desk is a directory with a configuration file that is being watched.
type desk struct {
	*testing.T
	dir, file string
	reloads   chan reload
	restart   chan *RestartError
	log       ktesting.Buffer
	doubts    *engine.Doubts
	unusable  error // what is wrong with every configuration that needs a restart
}

// reload is a configuration that was taken over.
type reload struct {
	config  config.Configuration
	changes []config.Change
}

func (d *desk) reloaded(_ context.Context, c config.Configuration, changes []config.Change) error {
	d.reloads <- reload{c, changes}
	return nil
}

// body returns a file with one field that a running daemon can change.
func body(ms int) string { return fmt.Sprintf("%snftables: {minSyncPeriod: %dms}\n", header, ms) }

func newDesk(t *testing.T) *desk {
	dir := t.TempDir()
	return &desk{
		T: t, dir: dir, file: filepath.Join(dir, "config.conf"), reloads: make(chan reload, 10), restart: make(chan *RestartError, 1),
	}
}

// start watches the file and waits until the watcher has seen it. Reads are
// counted from there.
func (d *desk) start() {
	d.Helper()
	logger := ktesting.NewLogger(d, ktesting.NewConfig(ktesting.BufferLogs(true)))
	d.log = logger.GetSink().(ktesting.Underlier).GetBuffer()
	ctx, stop := context.WithCancel(klog.NewContext(d.Context(), logger))
	o := parse(d.T, "--config", d.file)
	d.doubts = o.doubts
	read, err := o.read(config.NFTables)
	if err != nil {
		d.Fatal(err)
	}
	w := o.newConfigWatcher(read.config, d.reloaded)
	w.period = 20 * time.Millisecond
	w.validate = func(context.Context, config.Configuration) error { return d.unusable }
	looked := make(chan struct{}, 100)
	w.read = func(m config.ProxyMode) (parsed, error) {
		defer func() { looked <- struct{}{} }()
		return o.read(m)
	}
	ended := make(chan error)
	go func() {
		err := w.Run(ctx)
		if restart, ok := errors.AsType[*RestartError](err); ok {
			d.restart <- restart
			err = nil
		}
		ended <- err
	}()
	d.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			d.Error(err)
		}
	})
	<-looked
}

func (d *desk) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

// write replaces a file at once: on a busy machine half a file, written in
// place, could last longer than the watcher of a test waits.
func (d *desk) write(path, text string) {
	d.Helper()
	d.must(os.WriteFile(path+".new", []byte(text), 0o600))
	d.must(os.Rename(path+".new", path))
}

// want waits for a change of the one thing.
func (d *desk) want(ms int) {
	d.Helper()
	select {
	case r := <-d.reloads:
		want := time.Duration(ms) * time.Millisecond
		if r.config.MinSyncPeriod != want || len(r.changes) != 1 {
			d.Fatalf("min sync period %v, changes %v, want %v", r.config.MinSyncPeriod, r.changes, want)
		}
	case <-time.After(20 * time.Second):
		d.Fatalf("the change is not seen; log:\n%s", d.log.String())
	}
}

// complains waits for a line of the log.
func (d *desk) complains(text string) {
	d.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !strings.Contains(d.log.String(), text) {
		if time.Now().After(deadline) {
			d.Fatalf("nothing said of %q; log:\n%s", text, d.log.String())
		}
		select {
		case r := <-d.reloads:
			d.Fatalf("unexpected change: %v", r.changes)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if n := strings.Count(d.log.String(), text); n != 1 {
		d.Errorf("%q was said %d times", text, n)
	}
}

func TestReloadInPlace(t *testing.T) {
	d := newDesk(t)
	d.write(d.file, body(1))
	d.start()
	for ms := 2; ms < 4; ms++ {
		d.must(os.WriteFile(d.file, []byte(body(ms)), 0o600))
		d.want(ms)
	}
}

func TestReloadAfterRename(t *testing.T) {
	d := newDesk(t)
	d.write(d.file, body(1))
	d.start()
	for ms := 2; ms < 4; ms++ {
		d.write(d.file, body(ms))
		d.want(ms)
	}
}

// TestReloadOfConfigMap replaces links as kubelet does in a ConfigMap volume.
func TestReloadOfConfigMap(t *testing.T) {
	d := newDesk(t)
	publish := func(ms int) {
		version := fmt.Sprintf("..version-%d", ms)
		d.must(os.Mkdir(filepath.Join(d.dir, version), 0o700))
		d.write(filepath.Join(d.dir, version, "config.conf"), body(ms))
		d.must(os.Symlink(version, filepath.Join(d.dir, "..data_tmp")))
		d.must(os.Rename(filepath.Join(d.dir, "..data_tmp"), filepath.Join(d.dir, "..data")))
		if ms > 1 {
			d.must(os.RemoveAll(filepath.Join(d.dir, fmt.Sprintf("..version-%d", ms-1))))
		}
	}
	publish(1)
	d.must(os.Symlink("..data/config.conf", d.file))
	d.start()
	for ms := 2; ms < 5; ms++ {
		publish(ms)
		d.want(ms)
	}
}

// TestReloadBehindALink writes to the file that a link points to.
func TestReloadBehindALink(t *testing.T) {
	d := newDesk(t)
	target := writeFile(t, body(1))
	d.must(os.Symlink(target, d.file))
	d.start()
	d.write(target, body(2))
	d.want(2)
}

func TestReloadAfterRemoval(t *testing.T) {
	d := newDesk(t)
	d.write(d.file, body(1))
	d.start()
	d.must(os.Remove(d.file))
	d.complains("no such file or directory")
	d.write(d.file, body(2))
	d.want(2)
}

func TestBadReloadIsIgnored(t *testing.T) {
	d := newDesk(t)
	d.write(d.file, body(1))
	d.start()
	d.write(d.file, header+"nftables: {syncPeriod: -1s}\n")
	d.complains(`The new configuration cannot be used, the old one stays in force err="--config \"` + d.file +
		`\": nftables.syncPeriod \"-1s\": must be more than 0"`)
	e := newEngine(watchedPlane{}, d.doubts)
	wantDoubt(t, e, engine.ConfigurationRejected, `the old one stays in force: --config "`+d.file+`": nftables.syncPeriod "-1s": must be more than 0`)
	// The same again, and another file beside it, are no news.
	d.write(d.file, header+"nftables: {syncPeriod: -1s}\n")
	d.write(d.file+".swp", "x")
	d.write(d.file, "apiVersion: v1\nkind: Secret\n")
	d.complains(`kind \"Secret\": must be`)
	d.complains("nftables.syncPeriod")
	wantDoubt(t, e, engine.ConfigurationRejected, `kind "Secret": must be`)
	d.write(d.file, body(2))
	d.want(2)
	if n := strings.Count(d.log.String(), "cannot be used, the old one"); n != 2 {
		t.Errorf("%d complaints, want 2:\n%s", n, d.log.String())
	}
	for deadline := time.Now().Add(20 * time.Second); countDoubts(e, engine.ConfigurationRejected) > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // the watcher clears it after it has applied the file
	}
	wantNoDoubt(t, e, engine.ConfigurationRejected)
}

func TestReloadSaysWhatChanged(t *testing.T) {
	d := newDesk(t)
	d.write(d.file, header+"clusterCIDR: 10.0.0.0/8\n")
	d.start()
	live := header + `
clusterCIDR: 10.1.0.0/16
nodePortAddresses: [primary]
metricsBindAddress: none
logging: {verbosity: 3}
newField: true
`
	d.write(d.file, live+"nftables: {masqueradeAll: true}\n")
	var got []string
	for _, c := range (<-d.reloads).changes {
		got = append(got, c.String())
	}
	want := []string{
		`logging.verbosity from "0" to "3"`,
		`metricsBindAddress from "127.0.0.1:10249" to "none"`,
		`clusterCIDR from "[10.0.0.0/8]" to "[10.1.0.0/16]"`,
		`nodePortAddresses from "all" to "primary"`,
		`masqueradeAll from "false" to "true"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes mismatch (-want +got):\n%s", diff)
	}
	d.complains(`unknown field \"newField\"`)
	d.write(d.file, live+"nftables: {masqueradeBit: 3}\nconntrack: {min: 5}\n")
	const restart = `the configuration changed in fields that need a restart: conntrack.min from "131072" to "5", masqueradeBit from "14" to "3"`
	if err := <-d.restart; err.Error() != restart {
		t.Errorf("%v, want %s", err, restart)
	}
}

// TestPartOfAFileIsNotUsed reads a file while it is written in pieces, each of which
// is a valid file.
func TestPartOfAFileIsNotUsed(t *testing.T) {
	d := newDesk(t)
	whole := header + "clusterCIDR: 10.1.0.0/16\nnftables: {minSyncPeriod: 2ms}\n"
	d.write(d.file, body(1))
	o := parse(t, "--config", d.file)
	read, err := o.read(config.NFTables)
	d.must(err)
	w := o.newConfigWatcher(read.config, d.reloaded)
	steps := []struct {
		text    string
		applied bool
	}{
		{body(1), false}, // the file that the daemon has read
		{body(1), false},
		{"", false},
		{whole[:len(header)], false}, // all defaults
		{whole[:len(header)+25], false},
		{whole, false},
		{whole, true},
		{whole, false},
		{body(1), false}, // back before anybody believed it
		{whole, false},
		{whole, false},
	}
	for i, s := range steps {
		d.write(d.file, s.text)
		if w.check(t.Context()); len(d.reloads) > 0 != s.applied {
			t.Fatalf("step %d: %d applied", i, len(d.reloads))
		}
		if s.applied {
			if r := <-d.reloads; len(r.changes) != 2 {
				t.Errorf("changes %v", r.changes)
			}
		}
	}
}

// TestFileThatChangesWhileItIsRead checks that such a file is read again.
func TestFileThatChangesWhileItIsRead(t *testing.T) {
	d := newDesk(t)
	d.write(d.file, body(1))
	o := parse(t, "--config", d.file)
	read, err := o.read(config.NFTables)
	d.must(err)
	w := o.newConfigWatcher(read.config, d.reloaded)
	w.read = func(m config.ProxyMode) (parsed, error) {
		defer d.write(d.file, body(3))
		return o.read(m)
	}
	d.write(d.file, body(2))
	for i, want := range []int{0, 0, 0, 1} {
		if w.check(t.Context()); len(d.reloads) != want {
			t.Fatalf("look %d: %d applied", i, len(d.reloads))
		}
	}
	d.want(3)
}

// TestUnsupportedModeIsIgnored checks that the daemon continues in its mode.
func TestUnsupportedModeIsIgnored(t *testing.T) {
	d := newDesk(t)
	d.unusable = errors.New("probe mode iptables: no program iptables")
	d.write(d.file, body(1))
	d.start()
	d.write(d.file, header+"mode: iptables\n")
	d.complains("no program iptables")
	d.write(d.file, body(2))
	d.want(2)
}

// TestRestartsAreSpread checks that a restart is delayed if the file is in a
// ConfigMap volume, and does not happen if the change is reverted by then.
func TestRestartsAreSpread(t *testing.T) {
	d := newDesk(t)
	if in := restartDelay(d.file); in != 0 {
		t.Errorf("the restart for a plain file waits %v", in)
	}
	d.must(os.Symlink(d.dir, filepath.Join(d.dir, "..data")))
	longest := time.Duration(0)
	for range 100 {
		longest = max(longest, restartDelay(d.file))
	}
	if longest < restartSpread/2 || longest >= restartSpread {
		t.Errorf("restarts are spread over %v", longest)
	}

	synctest.Test(t, func(t *testing.T) {
		reloads := 0
		w := &configWatcher{
			running: configuration(t), delay: func() time.Duration { return time.Minute },
			validate: func(context.Context, config.Configuration) error { return nil },
			apply:    func(context.Context, config.Configuration, []config.Change) error { reloads++; return nil },
		}
		take := func(change func(*config.Configuration)) {
			c := configuration(t)
			change(&c)
			if err := w.accept(t.Context(), parsed{config: c}); err != nil {
				t.Fatal(err)
			}
		}
		take(func(c *config.Configuration) { c.Object.OOMScoreAdj = new(int32(1)) })
		first := w.due
		time.Sleep(30 * time.Second)
		take(func(c *config.Configuration) { c.Object.OOMScoreAdj = new(int32(2)) })
		if w.due != first || first == nil || w.restart.Changes[0].New != "2" {
			t.Error("a second change moved the restart, or is not in it")
		}
		take(func(*config.Configuration) {})
		if w.due != nil || reloads != 0 {
			t.Error("a change that was taken back is not forgotten")
		}
		take(func(c *config.Configuration) { c.Object.OOMScoreAdj = new(int32(1)) })
		take(func(c *config.Configuration) { c.MasqueradeAll = true })
		if w.due != nil || reloads != 1 || !w.running.MasqueradeAll {
			t.Error("a change that needs no restart is not taken over")
		}
	})
}

// TestRestartIsCancelled checks that there is no restart if the file becomes invalid
// by then.
func TestRestartIsCancelled(t *testing.T) {
	d := newDesk(t)
	w := &configWatcher{
		file: d.file, running: configuration(t), delay: func() time.Duration { return time.Hour },
		validate: func(context.Context, config.Configuration) error { return nil }, doubts: new(engine.Doubts),
	}
	look := func(text string, wrong error) {
		d.write(d.file, text)
		w.read = func(config.ProxyMode) (parsed, error) {
			c := configuration(t)
			c.Object.OOMScoreAdj = new(int32(1))
			return parsed{config: c}, wrong
		}
		for range 2 {
			w.check(t.Context())
		}
	}
	look("good", nil)
	if w.due == nil {
		t.Fatal("no restart is planned")
	}
	look("bad", errors.New("no such field"))
	if w.due != nil {
		t.Error("the daemon restarts with what it could not start with")
	}
	look("good again", nil)
	if w.due == nil {
		t.Error("no restart is planned any more")
	}
}

// TestChangeBeforeTheWatch changes the file after the daemon has read it and before
// the watcher runs.
func TestChangeBeforeTheWatch(t *testing.T) {
	d := newDesk(t)
	d.write(d.file, body(1))
	o := parse(t, "--config", d.file)
	read, err := o.read(config.NFTables)
	d.must(err)
	d.write(d.file, body(2))
	ctx, stop := context.WithCancel(t.Context())
	w := o.newConfigWatcher(read.config, func(ctx context.Context, c config.Configuration, changes []config.Change) error {
		stop()
		return d.reloaded(ctx, c, changes)
	})
	w.period = 20 * time.Millisecond
	d.must(w.Run(ctx))
	d.want(2)
}

// TestReloadKeepsTheMode reads a file without a mode: it stays the one that was
// chosen at the start.
func TestReloadKeepsTheMode(t *testing.T) {
	o := parse(t, "--config", writeFile(t, header))
	read, err := o.read(config.NFTables)
	if err != nil || read.config.Mode != config.NFTables || read.input.Object.Mode != "" {
		t.Errorf("mode %s of %q, error %v", read.config.Mode, read.input.Object.Mode, err)
	}
}
