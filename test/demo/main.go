//go:build linux

// Command demo shows Services at work on this machine, without a cluster. It
// makes a node, pods and an outside client from network namespaces, runs the
// real daemon on a copy of the examples folder inside the node, sends requests
// all the time and shows where they went. Meanwhile an endpoint is taken away,
// one is added and all is put back, by editing the manifests.
//
//	examples/ -> copy in a temporary folder -> sluice, in the node's namespace
//	    |                                          | rules
//	    +-> where requests should go        pod, node, outside -> Services -> pods
//	                    |                          |
//	                    +------- judged by --------+ -> table, verdict
//
// What should happen is read from the manifests in the plainest way; the demo
// must not know how the daemon decides or how it programs the kernel. On a
// terminal it draws; elsewhere, and with --once, it plays one round in plain
// lines. It exits with 0 only if every request went where it should.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

// The exit codes.
const (
	exitWrong       = 1
	exitInterrupted = 128 + int(syscall.SIGINT)
)

// errInterrupted ends a demo that its viewer has seen enough of.
var errInterrupted = errors.New("interrupted")

// options are the command line.
type options struct {
	sluice   string // the daemon's program
	examples string // the folder of manifests
	mode     string
	once     bool
	forever  bool
}

func main() {
	var o options
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "run this `PROGRAM` as the daemon")
	flag.StringVar(&o.examples, "examples", "examples", "serve the manifests of this `FOLDER`")
	flag.StringVar(&o.mode, "mode", "nftables", "let the daemon program the kernel by this `MODE`")
	flag.BoolVar(&o.once, "once", os.Getenv("ONCE") != "", "play one quick round in plain lines")
	flag.BoolVar(&o.forever, "forever", false, "begin again after each round, until Ctrl-C")
	flag.Parse()

	// An output that nobody reads any more ends the demo like Ctrl-C does:
	// there is something to clean up.
	ctx, stop := signal.NotifyContext(context.Background(),
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	switch err := o.run(ctx); err {
	case nil:
	case errInterrupted:
		if !o.forever {
			os.Exit(exitInterrupted)
		}
	default:
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(exitWrong)
	}
}

// check says what is missing before anything is made.
func (o options) check() error {
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: the demo takes flags only", flag.Arg(0))
	}
	if o.once && o.forever {
		return errors.New("--once and --forever exclude each other")
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root: run the demo as root, for example with sudo make demo")
	}
	if _, err := os.Stat(o.sluice); err != nil {
		return fmt.Errorf("find the daemon's program (make build writes it): %w", err)
	}
	return nil
}

// display chooses how to show the demo.
func (o options) display() display {
	fd := int(os.Stdout.Fd())
	if o.once || !term.IsTerminal(fd) || os.Getenv("TERM") == "dumb" {
		return &lines{out: os.Stdout}
	}
	return &screen{out: os.Stdout, fd: fd, look: look{
		colour: os.Getenv("NO_COLOR") == "",
		blocks: isUTF8(os.Getenv),
	}}
}

// pace returns how long the acts take.
func (o options) pace(d display) pace {
	if _, ok := d.(*screen); ok {
		return pace{frame: 100 * time.Millisecond, act: 6 * time.Second, forever: o.forever}
	}
	return pace{frame: 10 * time.Millisecond, forever: o.forever}
}

// run plays the demo and cleans up, whatever happens.
func (o options) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	dir, err := newFolder(o.examples)
	if err != nil {
		return err
	}
	d := o.display()
	d.say("Sluice demo: mode %s, on a copy of the manifests in %s", o.mode, o.examples)
	err = o.stage(ctx, dir, d)
	if err == errInterrupted {
		d.say("Interrupted.")
	}
	cleanup := dir.remove()
	if cleanup == nil {
		d.say("Cleaned up: the daemon, the namespaces and %s are gone.", dir.dir)
	}
	return failure(err, cleanup)
}

// stage makes the network, plays in it and takes it down.
func (o options) stage(ctx context.Context, dir *folder, d display) error {
	c, err := readCatalog(dir.live())
	if err != nil {
		return err
	}
	s, err := newStage(c)
	if err != nil {
		return err
	}
	d.say("made a node, %d pods and a client outside, in network namespaces of their own", len(c.pods))
	p := &play{folder: dir, stage: s, catalog: c, show: d, pace: o.pace(d), mode: o.mode}
	return failure(p.run(ctx, o.sluice), s.close())
}

// failure joins errors. To be interrupted is none beside others.
func failure(errs ...error) error {
	var failed []error
	interrupted := false
	for _, err := range errs {
		if err == errInterrupted {
			interrupted = true
		} else if err != nil {
			failed = append(failed, err)
		}
	}
	switch {
	case len(failed) > 0:
		return errors.Join(failed...)
	case interrupted:
		return errInterrupted
	default:
		return nil
	}
}
