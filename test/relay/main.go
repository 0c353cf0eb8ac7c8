//go:build linux

// Command relay compares mode userspace with other TCP proxies, in one run and in network
// namespaces: a client outside, a server in a pod, and on the node between them alternately
// nothing, the daemon, HAProxy or nginx.
//
// HAProxy and nginx are Debian's; they are downloaded into a temporary directory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

var (
	rounds = flag.Int("rounds", 15, "measure each `NUMBER` of times, by turns, and take the median")
	length = flag.Duration("length", time.Second, "measure for this `TIME`")
	idle   = flag.Int("idle", 2000, "hold this `NUMBER` of idle connections")
	daemon = flag.String("sluice", "bin/sluice", "the daemon `PROGRAM`")
	output = flag.String("output", "", "also write the table to this `FILE`")
)

const preamble = `# Mode userspace beside HAProxy and nginx

Written by ` + "`make bench-relay`" + `: a client outside, a server in a pod, and on the node between them nothing, the daemon, HAProxy or
nginx (Debian's) as a TCP proxy, by turns, on the same processors; medians, those of ratios of each round's. A new connection
carries a byte each way. Memory is what 2,000 idle connections take of a process that has served none before.

`

// target is the required share of the better competitor's figure.
const target = 0.9

func main() {
	flag.Parse()
	text, err := run(context.Background())
	fmt.Print(text)
	if err == nil && *output != "" {
		err = os.WriteFile(*output, []byte(preamble+text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// competitor is one of the proxies that are compared, or the direct connection.
type competitor struct {
	name    string
	at      netip.AddrPort
	process *exec.Cmd // nil for the direct connection
	log     strings.Builder

	rate, throughput []float64 // connections and bytes a second
	cpu              []float64 // CPU seconds per connection
	perIdle          float64   // bytes per idle connection
}

func run(ctx context.Context) (text string, err error) {
	dir, err := os.MkdirTemp("", "sluice-relay-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := lab.New(lab.Config{})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	pod, err := l.AddPod("server", server.Addr())
	if err != nil {
		return "", err
	}
	if err := serve(pod); err != nil {
		return "", err
	}
	if err := l.Node().Do(sharePorts); err != nil {
		return "", err
	}
	ways, err := start(l.Node(), dir)
	defer func() {
		for _, w := range ways {
			w.stop()
		}
	}()
	if err != nil {
		return "", err
	}
	c := &client{l.Outside()}
	for _, w := range ways {
		if err := c.waitReady(ctx, w); err != nil {
			return "", err
		}
	}
	for _, w := range ways { // first, because freed memory of other connections would be reused
		if err := c.measureIdle(ctx, w); err != nil {
			return "", err
		}
	}
	for range *rounds {
		for _, w := range ways {
			c.measureConnections(ctx, w)
			fmt.Fprintf(os.Stderr, "%s: %.0f connections/s\n", w.name, w.rate[len(w.rate)-1])
			if err := c.measureThroughput(ctx, w); err != nil {
				return "", err
			}
		}
	}
	return table(ways), nil
}

var (
	server   = netip.MustParseAddrPort("10.0.0.9:8080")
	sink     = netip.MustParseAddrPort("10.0.0.9:8081")
	outside  = netip.MustParseAddr("203.0.113.9")
	nodeAddr = "192.168.0.2"
)

// serve echoes one byte, and discards everything on another port.
func serve(pod *lab.Host) error {
	if _, err := pod.Sink(sink); err != nil {
		return err
	}
	var ln net.Listener
	err := pod.Do(func() (err error) {
		ln, err = net.Listen("tcp4", server.String())
		return err
	})
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.CopyN(c, c, 1)
				_, _ = c.Read(make([]byte, 1)) // the client closes first
				_ = c.Close()
			}()
		}
	}()
	return nil
}

// sharePorts lets the node reuse ports in TIME_WAIT, as busy proxies are configured: all
// competitors share its ports, and HAProxy and nginx close connections to the server themselves.
func sharePorts() error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/tcp_tw_reuse", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("1024 65535"), 0))
}

// start starts the proxies on the node. Each forwards one port to the server and the next one to
// the sink.
func start(node *lab.Host, dir string) ([]*competitor, error) {
	files := map[string]string{"manifests/services.yaml": manifests, "haproxy.cfg": haproxy, "nginx.conf": "load_module " +
		filepath.Join(dir, "root/usr/lib/nginx/modules/ngx_stream_module.so") + ";\npid " + dir + "/nginx.pid;\n" + nginx}
	for name, content := range files {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o644)); err != nil {
			return nil, err
		}
	}
	fetch := exec.Command("sh", "-ec", `mkdir deb root; cd deb
		apt-get -q download haproxy nginx libnginx-mod-stream liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
		for d in *.deb; do dpkg -x "$d" ../root; done`)
	fetch.Dir = dir
	if out, err := fetch.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("download HAProxy and nginx: %w: %s", err, out)
	}
	root := filepath.Join(dir, "root")
	ways := []*competitor{
		{name: "direct", at: server},
		{name: "sluice", at: netip.MustParseAddrPort("10.96.0.10:80"), process: exec.Command(*daemon, "--manifests", dir+"/manifests",
			"--proxy-mode", "userspace", "--hostname-override", "node", "--cluster-cidr", "10.0.0.0/24",
			"--healthz-bind-address", "none", "--metrics-bind-address", "none", "--status-socket", "")},
		{name: "HAProxy", at: netip.MustParseAddrPort(nodeAddr + ":8180"), process: exec.Command(root+"/usr/sbin/haproxy", "-db", "-f", dir+"/haproxy.cfg")},
		{name: "nginx", at: netip.MustParseAddrPort(nodeAddr + ":8280"), process: exec.Command(root+"/usr/sbin/nginx", "-c", dir+"/nginx.conf", "-e", dir+"/nginx.log", "-g", "daemon off;")},
	}
	for _, w := range ways[1:] {
		w.process.Env = append(os.Environ(), "LD_LIBRARY_PATH="+root+"/usr/lib/x86_64-linux-gnu")
		w.process.Stderr = &w.log
		if err := node.Start(w.process); err != nil {
			return ways, fmt.Errorf("start %s: %w", w.name, err)
		}
	}
	return ways, nil
}

// client connects from outside.
type client struct{ *lab.Host }

func (c *client) dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	return c.Dial(ctx, proxy.TCP, outside, at)
}

// waitReady waits until a competitor forwards to the server.
func (c *client) waitReady(ctx context.Context, w *competitor) error {
	ctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	var last error
	for ctx.Err() == nil {
		conn, err := c.dial(ctx, w.at)
		if err == nil {
			err = exchange(conn)
			_ = conn.Close()
		}
		if err == nil {
			return nil
		}
		last = err
		<-time.After(50 * time.Millisecond)
	}
	return fmt.Errorf("connect through %s: %w; its log: %s", w.name, last, w.log.String())
}

func exchange(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	b := []byte{1}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b)
	return err
}

// measureConnections counts new connections with one byte each way, from 16 threads in the
// namespace.
func (c *client) measureConnections(_ context.Context, w *competitor) {
	var done atomic.Int64
	var wg sync.WaitGroup
	before, began := cpu(w), time.Now()
	for range 16 {
		wg.Go(func() {
			_ = c.Do(func() error {
				for time.Since(began) < *length {
					if err := connectOnce(w.at); err != nil {
						return err
					}
					done.Add(1)
				}
				return nil
			})
		})
	}
	wg.Wait()
	w.rate = append(w.rate, float64(done.Load())/time.Since(began).Seconds())
	w.cpu = append(w.cpu, (cpu(w)-before)/float64(max(1, done.Load())))
}

// measureThroughput counts the bytes that four connections send to the sink.
func (c *client) measureThroughput(ctx context.Context, w *competitor) error {
	to := netip.AddrPortFrom(w.at.Addr(), w.at.Port()+1)
	var sent atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range 4 {
		conn, err := c.dial(ctx, to)
		if err != nil {
			return err
		}
		wg.Go(func() {
			b := make([]byte, 256<<10)
			for time.Since(began) < *length {
				n, err := conn.Write(b)
				sent.Add(int64(n))
				if err != nil {
					break
				}
			}
			_ = conn.Close()
		})
	}
	wg.Wait()
	w.throughput = append(w.throughput, float64(sent.Load())/time.Since(began).Seconds())
	fmt.Fprintf(os.Stderr, "%s: %.2f GB/s\n", w.name, w.throughput[len(w.throughput)-1]/1e9)
	return nil
}

// measureIdle measures the memory of idle connections. The first tenth of them is not counted, so
// that one-time allocations are left out.
func (c *client) measureIdle(ctx context.Context, w *competitor) error {
	if w.process == nil {
		return nil
	}
	first := *idle / 10
	before := 0
	for i := range *idle {
		if i == first {
			<-time.After(time.Second)
			before = resident(w)
		}
		conn, err := c.dial(ctx, w.at)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		defer func() { _ = conn.Close() }()
	}
	<-time.After(time.Second)
	w.perIdle = float64(resident(w)-before) / float64(*idle-first)
	return nil
}

func table(ways []*competitor) string {
	var b strings.Builder
	b.WriteString("| | new connections/s | CPU of the proxy for one | throughput | memory for an idle connection |\n|---|--:|--:|--:|--:|\n")
	for _, w := range ways {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f µs | %.2f GB/s | %.0f bytes |\n", w.name, median(w.rate), median(w.cpu)*1e6, median(w.throughput)/1e9, w.perIdle)
	}
	for _, what := range []struct {
		name string
		of   func(*competitor) []float64
	}{
		{"new connections", func(w *competitor) []float64 { return w.rate }},
		{"throughput", func(w *competitor) []float64 { return w.throughput }},
	} {
		ratio := math.Inf(1)
		for _, other := range ways[2:] {
			ratio = min(ratio, medianRatio(what.of(ways[1]), what.of(other)))
		}
		fmt.Fprintf(&b, "\n%s: %.2f of the better one (target: at least %.1f): %s\n", what.name, ratio, target,
			map[bool]string{true: "holds", false: "**does not hold**"}[ratio >= target])
	}
	return b.String()
}

// medianRatio returns the median of the ratios by round, because the speed of the machine varies.
func medianRatio(mine, other []float64) float64 {
	ratios := slices.Clone(mine)
	for i := range ratios {
		ratios[i] /= other[i]
	}
	return median(ratios)
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(list))[len(list)/2]
}
