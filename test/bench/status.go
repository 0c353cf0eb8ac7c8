//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

const (
	asked       = 10_000                // Services of the daemon that is asked
	phase       = 2 * time.Second       // of being asked, or of not being asked
	phases      = 12                    // of each
	changeEvery = 20 * time.Millisecond // an endpoint is replaced
	metricsAt   = "127.0.0.1:10249"
)

// watchers is what is asked of a daemon when its page is open, top runs and
// metrics are scraped, and how often.
var watchers = []struct {
	path  string
	every time.Duration
}{
	{statusapi.NodePath, 2 * time.Second},
	{statusapi.ServicesPath + "?limit=100&sort=-connections", 2 * time.Second},
	{statusapi.ServicesPath + "/default/web", 2 * time.Second},
	{statusapi.TrafficPath + "?limit=500", 2 * time.Second},
}

// measureStatus replaces an endpoint again and again in a whole daemon, in turns
// with and without others who ask it for its status.
func measureStatus(ctx context.Context, r *report) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	d := &askedDaemon{dir: dir, client: statusapi.AtSocket(filepath.Join(dir, "s")), namespace: int(own.Fd())}
	if err := d.start(ctx); err != nil {
		return err
	}
	defer d.stop()
	var idle, busy []time.Duration
	for range phases {
		for _, with := range []*[]time.Duration{&idle, &busy} {
			took, err := d.changes(ctx, with == &busy)
			if err != nil {
				return err
			}
			*with = append(*with, median(took))
		}
	}
	if d.scraped == 0 {
		return errors.New("no metrics could be scraped")
	}
	ratio := medianRatio(busy, idle)
	r.add(fmt.Sprintf("endpoint change at %d Services, page open, top running, scraped each second: p50 with and without", asked),
		fmt.Sprintf("%v and %v, %.2fx", median(busy).Round(time.Microsecond), median(idle).Round(time.Microsecond), ratio),
		"within 1.3x", ratio <= 1.3)
	return nil
}

// askedDaemon is a daemon with many Services.
type askedDaemon struct {
	dir    string
	client *statusapi.Client
	cmd    *exec.Cmd
	n      int // changes so far

	namespace int   // of network
	scraped   int64 // bytes of metrics
}

// start builds and starts the daemon, and waits until all is in force.
func (d *askedDaemon) start(ctx context.Context) error {
	program, manifests := filepath.Join(d.dir, "sluice"), filepath.Join(d.dir, "manifests")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/sluice").CombinedOutput(); err != nil {
		return fmt.Errorf("build the daemon: %w: %s", err, out)
	}
	if err := os.Mkdir(manifests, 0o755); err != nil {
		return err
	}
	many, err := os.Create(filepath.Join(manifests, "many.json"))
	if err != nil {
		return err
	}
	list := json.NewEncoder(many)
	for i := range asked {
		svc, slice := serviceObject(i), sliceObject(i, i*16)
		svc.APIVersion, svc.Kind, slice.APIVersion, slice.Kind = "v1", "Service", "discovery.k8s.io/v1", "EndpointSlice"
		for _, o := range []any{svc, slice} {
			_, _ = io.WriteString(many, "---\n") // a failure shows at the end
			if err := list.Encode(o); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(many.Close(), d.change()); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(d.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	d.cmd = exec.CommandContext(ctx, program, "--manifests", manifests, "--hostname-override", "node", "--cluster-cidr", "10.0.0.0/8",
		"--status-socket", filepath.Join(d.dir, "s"), "--metrics-bind-address", metricsAt, "--healthz-bind-address", "none")
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	if err := cli.Wait(ctx, d.client, time.Minute); err != nil {
		d.stop()
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w; its log: %s", err, text)
	}
	return nil
}

func (d *askedDaemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	_ = d.cmd.Wait()
}

// change replaces the endpoint of one Service.
func (d *askedDaemon) change() error {
	d.n++
	const text = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 172.31.255.1, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [%v]}]
`
	file := filepath.Join(d.dir, "manifests", "web.yaml")
	addr := netip.AddrFrom4([4]byte{10, 200, byte(d.n >> 8), byte(d.n)})
	if err := os.WriteFile(file+".new", fmt.Appendf(nil, text, addr), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// changes makes changes for one phase and returns how long each took to be in force.
func (d *askedDaemon) changes(ctx context.Context, withWatchers bool) ([]time.Duration, error) {
	var before statusapi.ChangeList
	if err := d.client.Get(ctx, statusapi.ChangesPath, url.Values{"limit": {"1"}}, &before); err != nil {
		return nil, err
	}
	during, cancel := context.WithTimeout(ctx, phase)
	defer cancel()
	var others sync.WaitGroup
	if withWatchers {
		d.watch(during, &others)
	}
	tick := time.NewTicker(changeEvery)
	defer tick.Stop()
	for during.Err() == nil {
		if err := d.change(); err != nil {
			return nil, err
		}
		select {
		case <-tick.C:
		case <-during.Done():
		}
	}
	others.Wait()
	var after statusapi.ChangeList
	if err := d.client.Get(ctx, statusapi.ChangesPath, url.Values{"limit": {"500"}}, &after); err != nil {
		return nil, err
	}
	var took []time.Duration
	for _, c := range after.Items {
		if c.Number > before.Items[0].Number {
			took = append(took, time.Duration(c.Seconds*float64(time.Second)))
		}
	}
	if len(took) < 20 {
		return nil, fmt.Errorf("%d changes came in force in %v", len(took), phase)
	}
	return took, nil
}

// watch asks the daemon as people and programs do, until ctx ends.
func (d *askedDaemon) watch(ctx context.Context, group *sync.WaitGroup) {
	every := func(period time.Duration, ask func()) {
		group.Go(func() {
			tick := time.NewTicker(period)
			defer tick.Stop()
			for ctx.Err() == nil {
				ask()
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	for _, w := range watchers {
		u, _ := url.Parse(w.path) // a constant
		every(w.every, func() {
			var answer any
			_ = d.client.Get(ctx, u.Path, u.Query(), &answer) // the end of the phase cuts one off
		})
	}
	group.Go(func() { scrape(ctx, d.namespace, &d.scraped) })
}

// scrape reads the metrics each second, from within a network namespace, until
// ctx ends.
func scrape(ctx context.Context, namespace int, bytes *int64) {
	runtime.LockOSThread() // and never unlocked: the thread is in the namespace, and ends with this
	if unix.Setns(namespace, unix.CLONE_NEWNET) != nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		if conn, err := net.Dial("tcp", metricsAt); err == nil {
			_, _ = io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n")
			n, _ := io.Copy(io.Discard, conn)
			*bytes += n
			_ = conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
