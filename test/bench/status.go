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
	polledServices = 10_000                // Services of the daemon
	phaseTime      = 2 * time.Second       // with or without polling
	phases         = 12                    // of each
	changeEvery    = 20 * time.Millisecond // between two replacements of an endpoint
	metricsAt      = "127.0.0.1:10249"
)

// polledPaths is what clients request while the status page is open and top runs, and how often.
var polledPaths = []struct {
	path  string
	every time.Duration
}{
	{statusapi.NodePath, 2 * time.Second},
	{statusapi.ServicesPath + "?limit=100&sort=-connections", 2 * time.Second},
	{statusapi.ServicesPath + "/default/web", 2 * time.Second},
	{statusapi.TrafficPath + "?limit=500", 2 * time.Second},
}

// measureStatus repeatedly replaces an endpoint in a whole daemon, alternately with and without
// clients that poll its status.
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
	d := &polledDaemon{dir: dir, client: statusapi.AtSocket(filepath.Join(dir, "s")), namespace: int(own.Fd())}
	if err := d.start(ctx); err != nil {
		return err
	}
	defer d.stop()
	var idle, busy []time.Duration
	for range phases {
		for _, with := range []*[]time.Duration{&idle, &busy} {
			took, err := d.measureChanges(ctx, with == &busy)
			if err != nil {
				return err
			}
			*with = append(*with, median(took))
		}
	}
	if d.scraped == 0 {
		return errors.New("scrape metrics: got no bytes")
	}
	ratio := medianRatio(busy, idle)
	r.add(fmt.Sprintf("endpoint change at %d Services, page open, top running, scraped each second: p50 with and without", polledServices),
		fmt.Sprintf("%v and %v, %.2fx", median(busy).Round(time.Microsecond), median(idle).Round(time.Microsecond), ratio),
		"within 1.3x", ratio <= 1.3)
	return nil
}

// polledDaemon is a daemon with many Services.
type polledDaemon struct {
	dir         string
	client      *statusapi.Client
	cmd         *exec.Cmd
	changeCount int // changes so far

	namespace int   // file descriptor of the network namespace
	scraped   int64 // bytes of metrics
}

// start builds and starts the daemon, and waits until everything is in force.
func (d *polledDaemon) start(ctx context.Context) error {
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
	for i := range polledServices {
		svc, slice := serviceObject(i), sliceObject(i, i*16)
		svc.APIVersion, svc.Kind, slice.APIVersion, slice.Kind = "v1", "Service", "discovery.k8s.io/v1", "EndpointSlice"
		for _, o := range []any{svc, slice} {
			_, _ = io.WriteString(many, "---\n") // Close reports a failure
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

func (d *polledDaemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	_ = d.cmd.Wait()
}

// change replaces the endpoint of one Service.
func (d *polledDaemon) change() error {
	d.changeCount++
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
	addr := netip.AddrFrom4([4]byte{10, 200, byte(d.changeCount >> 8), byte(d.changeCount)})
	if err := os.WriteFile(file+".new", fmt.Appendf(nil, text, addr), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// measureChanges makes changes for one phase and returns how long each took to be in force.
func (d *polledDaemon) measureChanges(ctx context.Context, withWatchers bool) ([]time.Duration, error) {
	var before statusapi.ChangeList
	if err := d.client.Get(ctx, statusapi.ChangesPath, url.Values{"limit": {"1"}}, &before); err != nil {
		return nil, err
	}
	during, cancel := context.WithTimeout(ctx, phaseTime)
	defer cancel()
	var others sync.WaitGroup
	if withWatchers {
		d.poll(during, &others)
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
		return nil, fmt.Errorf("measure changes: only %d took effect in %v", len(took), phaseTime)
	}
	return took, nil
}

// poll polls the daemon as operators and Prometheus do, until ctx ends.
func (d *polledDaemon) poll(ctx context.Context, group *sync.WaitGroup) {
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
	for _, w := range polledPaths {
		u, _ := url.Parse(w.path) // a valid constant
		every(w.every, func() {
			var answer any
			_ = d.client.Get(ctx, u.Path, u.Query(), &answer) // the end of the phase interrupts one
		})
	}
	group.Go(func() { scrape(ctx, d.namespace, &d.scraped) })
}

// scrape reads the metrics every second, from within a network namespace, until ctx ends.
func scrape(ctx context.Context, namespace int, bytes *int64) {
	runtime.LockOSThread() // never unlocked: the thread stays in the namespace and ends with the goroutine
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
