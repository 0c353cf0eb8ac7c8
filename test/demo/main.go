//go:build linux

// Command demo shows Services at work on this machine, without a cluster. It makes a node, pods and
// an outside client from network namespaces, runs the real daemon on a copy of the examples folder
// inside the node, sends requests all the time and shows where they went. Meanwhile an endpoint is
// taken away, one is added and all is put back, by editing the manifests.
//
//	examples/ -> copy in a temporary folder -> sluice, in the node's namespace
//	    +-> resolver -> oracle                     | rules
//	                      |                 pod, node, outside -> Services -> pods
//	                      +------- compared with --+ -> table, verdict
//
// The daemon's page can be looked at meanwhile. On a terminal the table moves; elsewhere, and with
// --once, there is one after each step. The demo exits with 0 only if every request went where the
// oracle says.
package main

import (
	"bytes"
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

	"sluice/internal/proxy"
)

func main() {
	p := &play{display: &display{out: os.Stdout, width: 100}}
	flag.StringVar(&p.sluice, "sluice", "bin/sluice", "run this `PROGRAM` as the daemon")
	flag.StringVar(&p.examples, "examples", "examples", "serve the manifests of this `FOLDER`")
	flag.StringVar(&p.mode, "mode", "nftables", "let the daemon program the kernel by this `MODE`")
	flag.BoolVar(&p.once, "once", os.Getenv("ONCE") != "", "play one quick round, with a table after each step")
	flag.BoolVar(&p.forever, "forever", false, "begin again after each round, until Ctrl-C")
	flag.Parse()
	// An output that nobody reads any more ends the demo like Ctrl-C does: there is something to clean up.
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
	interval = 10 * time.Millisecond // between two rounds of requests
	timeout  = time.Second           // of a request: nothing here is slow, so what takes longer is lost
	startup  = 15 * time.Second      // how long the daemon may take until it forwards
	grace    = 5 * time.Second       // and to stop
	lastLog  = 2000                  // bytes of its log that a failure shows
	liveStep = 6 * time.Second       // how long a step lasts at least on a terminal
	settling = 10 * time.Second      // how long a change may take; longer than bound, as a slow machine sends few
)

// play is one run of the demo.
type play struct {
	sluice        string // the daemon's program
	mode          string
	once, forever bool
	manifests
	*network
	*expectations
	display *display
	stats   *stats
	failed  chan error // the daemon has ended, or a client could not send
}

// run makes all that the demo needs, plays it and cleans up, whatever happens.
func (p *play) run(ctx context.Context) (err error) {
	switch _, err := os.Stat(p.sluice); {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: the demo takes flags only", flag.Arg(0))
	case os.Geteuid() != 0:
		return errors.New("network namespaces need root: run the demo as root, for example with sudo make demo")
	case err != nil:
		return fmt.Errorf("find the daemon's program (make build writes it): %w", err)
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
	p.display.say("made a node, %d pods and a client outside, in network namespaces of their own", len(p.pods()))
	err = errors.Join(p.withDaemon(ctx), p.network.close())
	if ctx.Err() != nil {
		p.display.say("Interrupted.")
	}
	p.display.say("Cleaned up: the daemon, the namespaces and %s are gone.", p.dir)
	return err
}

// steps returns those of a round, which ends as it began.
func (e *expectations) steps() []edit {
	leaves := []netip.Addr{e.local[1]} // the first one is a client too
	comes := []discoveryv1.Endpoint{{Addresses: []string{laterAddr}, NodeName: new(laterNode)}}
	return []edit{
		{title: fmt.Sprintf("%d pods serve all Services", len(e.pods()))},
		{title: fmt.Sprintf("taking away %v", leaves[0]), remove: leaves},
		{title: fmt.Sprintf("adding %v, on another node", laterAddr), remove: leaves, add: comes},
		{title: "putting everything back"},
	}
}

// withDaemon starts the daemon, plays and stops it.
func (p *play) withDaemon(ctx context.Context) (err error) {
	if p.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.dir)) }()
	files, err := p.edited(edit{})
	if err = errors.Join(err, os.Mkdir(p.live(), 0o755), p.publish(files)); err != nil {
		return err
	}
	p.failed = make(chan error, 1+len(p.clients))
	running, stop := context.WithCancel(context.Background())
	defer stop()
	var log bytes.Buffer
	daemon := exec.CommandContext(running, p.sluice, "--manifests", p.live(), "--hostname-override", p.node().Name,
		"--proxy-mode", p.mode, "--cluster-cidr", clusterCIDR, "--status-socket", p.socket(), "--v", "2")
	daemon.Args = append(daemon.Args, p.flags...)
	daemon.Stdout, daemon.Stderr = &log, &log
	daemon.Cancel, daemon.WaitDelay = func() error { return daemon.Process.Signal(syscall.SIGTERM) }, grace
	// Ctrl-C is for the demo, which then stops the daemon. Should the demo be killed, the daemon goes too.
	daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.lab.Node().Start(daemon); err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		err := daemon.Wait()
		p.failed <- fmt.Errorf("the daemon has ended by itself (%v)", daemon.ProcessState)
		ended <- err
	}()
	if err = p.await(ctx); err == nil {
		err = p.servePage(running)
	}
	if err == nil {
		err = p.send(ctx)
	}
	if errors.Is(err, context.Canceled) {
		err = nil // the viewer has seen enough
	}
	stop()
	if end := <-ended; err == nil && !errors.Is(end, context.Canceled) {
		err = fmt.Errorf("stop the daemon by SIGTERM, within %v: %w", grace, end)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "The end of the daemon's log:\n%s\n", log.Bytes()[max(0, log.Len()-lastLog):])
	}
	return err
}

// until waits for something and meanwhile shows a table that moves.
func (p *play) until(ctx context.Context, headline string, over func() bool) error {
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

// await waits until the daemon forwards everything as it should.
func (p *play) await(ctx context.Context) error {
	var wrong error
	began := time.Now()
	err := p.until(ctx, "", func() bool {
		st := newStats(p.targets())
		wrong = nil
		for _, c := range p.clients {
			all, err := p.network.send(ctx, c, p.targets())
			wrong = errors.Join(wrong, err)
			st.take(all)
		}
		wrong = errors.Join(wrong, st.verdict())
		return wrong == nil || time.Since(began) > startup
	})
	if err == nil && wrong != nil {
		err = fmt.Errorf("the daemon does not forward %v after its start: %w", startup, wrong)
	}
	if err == nil {
		p.display.say("the daemon forwards%s of its start", delay(time.Since(began)))
	}
	return err
}

// send sends requests all the time and makes the steps meanwhile.
func (p *play) send(ctx context.Context) error {
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
				p.stats.take(all)
			}
		})
	}
	err := p.rounds(ctx)
	stop()
	clients.Wait()
	if wrong := p.stats.verdict(); wrong != nil || err != nil {
		return cmp.Or(wrong, err)
	}
	if p.display.say("Every request went where it should."); p.mode == "ebpf" {
		err = p.tellSockets(ctx)
	}
	return err
}

// tellSockets says how many requests went straight to an endpoint, in mode ebpf.
func (p *play) tellSockets(ctx context.Context) error {
	conn, err := p.lab.Node().Dial(ctx, proxy.TCP, netip.Addr{}, netip.MustParseAddrPort("127.0.0.1:10249"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprint(conn, "GET /metrics HTTP/1.0\r\n\r\n")
	text, err2 := io.ReadAll(conn)
	count := regexp.MustCompile(`ebpf_translated_total{protocol="TCP"} ([1-9]\d*)`).FindSubmatch(text)
	if err = errors.Join(err, err2); err != nil || count == nil {
		return fmt.Errorf("no request went straight to an endpoint by its socket: %v", err)
	}
	p.display.say("%s of them went straight to an endpoint, by their socket.", count[1])
	return nil
}

// rounds makes all steps once, or again and again. What is wrong ends it.
func (p *play) rounds(ctx context.Context) error {
	steps := p.steps()
	for i := 0; i < len(steps) || p.forever; i++ {
		e := steps[i%len(steps)]
		e.title = fmt.Sprintf("%d/%d  %s", i%len(steps)+1, len(steps), e.title)
		if err := p.step(ctx, e); err != nil || p.stats.verdict() != nil {
			return err
		}
	}
	return nil
}

// step changes the manifests, waits until requests follow, and looks where many go from then on.
func (p *play) step(ctx context.Context, e edit) error {
	files, err := p.edited(e)
	if err != nil {
		return err
	}
	p.expectations.change(e)
	began := time.Now() // what is new is right from a moment just before the change on
	p.stats.change(p.targets(), began)
	if err := p.publish(files); err != nil {
		return err
	}
	wrong := func() bool { return p.stats.verdict() != nil }
	settled := func() bool { return p.stats.each((*service).settled) }
	over := func() bool { return settled() || wrong() || time.Since(began) > settling }
	switch err := p.until(ctx, e.title+" ...", over); {
	case err != nil || wrong():
		return err
	case !settled():
		return fmt.Errorf("%s: requests did not follow within %v", e.title, settling)
	}
	p.stats.each(func(s *service) bool { s.restart(time.Now()); return true })
	full := func(s *service) bool { return s.sampled >= enough }
	sampled := func() bool { return p.stats.each(full) && (!p.display.live || time.Since(began) > liveStep) }
	if err := p.until(ctx, e.title, sampled); err != nil {
		return err
	}
	p.stats.inspect()
	p.display.table(e.title, p.stats)
	p.display.say("")
	return nil
}
