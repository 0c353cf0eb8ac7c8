//go:build linux

// Command demo shows Services at work on this machine, without a cluster. It builds a node, pods
// and an outside client from network namespaces, runs the real daemon on a copy of the examples
// folder inside the node, sends requests continuously and shows which endpoints they reach.
// Meanwhile it edits the manifests: it removes an endpoint, adds another one, and restores
// everything.
//
//	examples/ -> copy in a temporary folder -> sluice, in the node's namespace
//	    +-> resolver -> oracle                     | rules
//	                      |                 pod, node, outside -> Services -> pods
//	                      +------- compared with --+ -> table, verdict
//
// The daemon's status page is served meanwhile. On a terminal the table is updated in place;
// elsewhere, and with --once, one is printed after each step. The exit code is 0 only if every
// request reached an endpoint that the oracle allows.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/conformance/subprocess"
	"sluice/internal/proxy"
)

func main() {
	p := &demo{display: &display{out: os.Stdout, width: 100}}
	flag.StringVar(&p.sluice, "sluice", "bin/sluice", "run this `PROGRAM` as the daemon")
	flag.StringVar(&p.examples, "examples", "examples", "serve the manifests of this `FOLDER`")
	flag.StringVar(&p.mode, "mode", "nftables", "run the daemon in this `MODE`")
	flag.BoolVar(&p.once, "once", os.Getenv("ONCE") != "", "run one quick round, with a table after each step")
	flag.BoolVar(&p.forever, "forever", false, "repeat rounds until Ctrl-C")
	flag.Parse()
	// SIGPIPE, when nobody reads the output any more, ends the demo like Ctrl-C, so that it cleans
	// up.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	if err := p.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
	if ctx.Err() != nil && !p.forever {
		os.Exit(128 + int(syscall.SIGINT))
	}
}

const (
	interval      = 10 * time.Millisecond // between two rounds of requests
	timeout       = time.Second           // of a request; nothing here is slow, so a longer one is lost
	startTimeout  = 15 * time.Second      // until the daemon forwards
	stopTimeout   = 5 * time.Second       // until the daemon has stopped
	logTail       = 2000                  // bytes of the daemon's log shown after a failure
	minStepTime   = 6 * time.Second       // of a step on a terminal
	settleTimeout = 10 * time.Second      // of a change; more than maxDelay, because a slow machine sends few requests
)

// demo is one run of the program.
type demo struct {
	sluice        string // path of the daemon
	mode          string
	once, forever bool
	manifests
	*network
	*expectations
	display *display
	stats   *stats
	failed  chan error // the daemon has exited, or a client cannot send
}

// run sets up the demo, runs it and always cleans up.
func (p *demo) run(ctx context.Context) (err error) {
	switch _, err := os.Stat(p.sluice); {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: the demo takes flags only", flag.Arg(0))
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root: run the demo as root, for example with sudo make demo")
	case err != nil:
		return fmt.Errorf("find the daemon, run make build first: %w", err)
	}
	if w, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && w > columns && !p.once && os.Getenv("TERM") != "dumb" {
		p.display.live, p.display.colour = true, os.Getenv("NO_COLOR") == ""
	}
	p.display.say("Sluice demo: mode %s, real requests to the Services in %s; Ctrl-C ends it", p.mode, p.examples)
	if p.expectations, err = readExpectations(p.examples); err != nil {
		return err
	}
	if p.network, err = newNetwork(p.expectations, p.mode); err != nil {
		return err
	}
	p.display.say("Created a node, %d pods and an outside client in network namespaces", len(p.pods()))
	err = errors.Join(p.withDaemon(ctx), p.network.close())
	if ctx.Err() != nil {
		p.display.say("Interrupted.")
	}
	p.display.say("Cleaned up: stopped the daemon, removed the namespaces and %s.", p.dir)
	return err
}

// steps returns the steps of a round; the last one restores the first state.
func (e *expectations) steps() []edit {
	leaves := []netip.Addr{e.local[1]} // the first one is also a client
	comes := []discoveryv1.Endpoint{{Addresses: []string{addedAddr}, NodeName: new(otherNode)}}
	return []edit{
		{title: fmt.Sprintf("%d pods serve all Services", len(e.pods()))},
		{title: fmt.Sprintf("removing %v", leaves[0]), remove: leaves},
		{title: fmt.Sprintf("adding %v, on another node", addedAddr), remove: leaves, add: comes},
		{title: "restoring everything"},
	}
}

// withDaemon starts the daemon, runs the steps and stops it.
func (p *demo) withDaemon(ctx context.Context) (err error) {
	if p.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.dir)) }()
	files, err := p.apply(edit{})
	if err = errors.Join(err, os.Mkdir(p.watchedDir(), 0o755), p.write(files)); err != nil {
		return err
	}
	p.failed = make(chan error, 1+len(p.clients))
	cmd := exec.Command(p.sluice, "--manifests", p.watchedDir(), "--hostname-override", p.node().Name,
		"--proxy-mode", p.mode, "--cluster-cidr", clusterCIDR, "--status-socket", p.socket(), "--v", "2")
	cmd.Args = append(cmd.Args, p.flags...)
	// Ctrl-C is for the demo, which then stops the daemon. If the demo is killed, the daemon ends
	// too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	daemon, err := subprocess.Start(cmd, p.lab.Node().Start)
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	go func() {
		<-daemon.Done
		p.failed <- fmt.Errorf("the daemon has exited: %v", cmd.ProcessState)
	}()
	if err = p.waitForwarding(ctx); err == nil {
		err = p.servePage(ctx)
	}
	if err == nil {
		err = p.sendAll(ctx)
	}
	if errors.Is(err, context.Canceled) {
		err = nil // interrupted by the user
	}
	kill := time.AfterFunc(stopTimeout, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	if code := daemon.End(syscall.SIGTERM); err == nil && code != 0 {
		err = fmt.Errorf("stop the daemon with SIGTERM within %v: %v", stopTimeout, cmd.ProcessState)
	}
	if err != nil {
		log := daemon.Log()
		fmt.Fprintf(os.Stderr, "The end of the daemon's log:\n%s\n", log[max(0, len(log)-logTail):])
	}
	return err
}

// waitUntil waits for a condition. On a terminal it updates the table meanwhile.
func (p *demo) waitUntil(ctx context.Context, headline string, over func() bool) error {
	tick := time.NewTicker(5 * interval)
	defer tick.Stop()
	for !over() {
		if p.display.live && p.stats != nil {
			p.display.table(headline, p.stats)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-p.failed:
			return err
		case <-tick.C:
		}
	}
	return nil
}

// waitForwarding waits until the daemon forwards every request as the oracle expects.
func (p *demo) waitForwarding(ctx context.Context) error {
	var wrong error
	began := time.Now()
	err := p.waitUntil(ctx, "", func() bool {
		st := newStats(p.targets())
		wrong = nil
		for _, c := range p.clients {
			all, err := p.network.send(ctx, c, p.targets())
			wrong = errors.Join(wrong, err)
			st.record(all)
		}
		wrong = errors.Join(wrong, st.err())
		return wrong == nil || time.Since(began) > startTimeout
	})
	if err == nil && wrong != nil {
		err = fmt.Errorf("wait for the daemon to forward, %v after its start: %w", startTimeout, wrong)
	}
	if err == nil {
		p.display.say("The daemon forwards%s", delay(time.Since(began)))
	}
	return err
}

// sendAll sends requests continuously while the steps run.
func (p *demo) sendAll(ctx context.Context) error {
	targets := p.targets()
	p.stats = newStats(targets)
	sending, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for _, c := range p.clients {
		clients.Go(func() {
			for tick := time.NewTicker(interval); sending.Err() == nil; <-tick.C {
				all, err := p.network.send(sending, c, targets)
				if err != nil && sending.Err() == nil {
					p.failed <- err
					return
				}
				p.stats.record(all)
			}
		})
	}
	err := p.rounds(ctx)
	stop()
	clients.Wait()
	if wrong := p.stats.err(); wrong != nil || err != nil {
		return cmp.Or(wrong, err)
	}
	if p.display.say("Every request reached an expected endpoint or was refused as expected."); p.mode == "ebpf" {
		err = p.reportTranslated(ctx)
	}
	return err
}

// reportTranslated prints how many connections mode ebpf translated at the socket.
func (p *demo) reportTranslated(ctx context.Context) error {
	conn, err := p.lab.Node().Dial(ctx, proxy.TCP, netip.Addr{}, netip.MustParseAddrPort("127.0.0.1:10249"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprint(conn, "GET /metrics HTTP/1.0\r\n\r\n")
	text, err2 := io.ReadAll(conn)
	count := regexp.MustCompile(`ebpf_translated_total{protocol="TCP"} ([1-9]\d*)`).FindSubmatch(text)
	if err = errors.Join(err, err2); err != nil || count == nil {
		return fmt.Errorf("read ebpf_translated_total: no connection was translated at its socket: %v", err)
	}
	p.display.say("%s connections were translated at their socket.", count[1])
	return nil
}

// rounds runs all steps once, or repeatedly, until a request has a wrong result.
func (p *demo) rounds(ctx context.Context) error {
	steps := p.steps()
	for i := 0; i < len(steps) || p.forever; i++ {
		e := steps[i%len(steps)]
		e.title = fmt.Sprintf("%d/%d  %s", i%len(steps)+1, len(steps), e.title)
		if err := p.step(ctx, e); err != nil || p.stats.err() != nil {
			return err
		}
	}
	return nil
}

// step edits the manifests, waits until requests follow the change, and then samples where they go.
func (p *demo) step(ctx context.Context, e edit) error {
	files, err := p.apply(e)
	if err != nil {
		return err
	}
	p.expectations.change(e)
	began := time.Now() // before the change, because new endpoints may answer at once
	p.stats.change(p.targets(), began)
	if err := p.write(files); err != nil {
		return err
	}
	wrong := func() bool { return p.stats.err() != nil }
	settled := func() bool { return p.stats.each((*service).settled) }
	over := func() bool { return settled() || wrong() || time.Since(began) > settleTimeout }
	switch err := p.waitUntil(ctx, e.title+" ...", over); {
	case err != nil || wrong():
		return err
	case !settled():
		return fmt.Errorf("%s: requests did not follow the change within %v", e.title, settleTimeout)
	}
	p.stats.each(func(s *service) bool { s.restart(time.Now()); return true })
	full := func(s *service) bool { return s.sampled >= minSample }
	sampled := func() bool { return p.stats.each(full) && (!p.display.live || time.Since(began) > minStepTime) }
	if err := p.waitUntil(ctx, e.title, sampled); err != nil {
		return err
	}
	p.stats.checkSamples()
	p.display.table(e.title, p.stats)
	p.display.say("")
	return nil
}
