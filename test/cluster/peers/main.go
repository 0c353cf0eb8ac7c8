// Command peers measures Sluice and kube-proxy side by side: real etcd, real
// kube-apiserver, one proxy after the other on a fresh node. It builds what it
// needs, shows what it does, and writes the figures as JSON, as Markdown and as
// pictures. It needs root, and leaves the machine's own network alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/peers/render"
	"sluice/test/cluster/peers/trial"
)

// options are the flags.
type options struct {
	peers         string
	sizes, legacy string // for nftables, for iptables
	output        string
	render        string
	readme        string
	fresh         bool
	counts        bool
	keep          bool
	watch         string
	limits        trial.Limits
}

// settings are the flags that the page shows.
var settings = []string{"cold-start", "samples", "budget", "patience", "idle", "burst"}

func main() {
	var o options
	flag.StringVar(&o.peers, "peers", "sluice/nftables,sluice/iptables,kube-proxy-1.37/nftables,kube-proxy-1.37/iptables,"+
		"kube-proxy-1.36/nftables,kube-proxy-1.36/iptables", "measure these, in this order")
	flag.StringVar(&o.sizes, "sizes", "10x10,1000x10,10000x10,30000x4", "`SERVICESxENDPOINTS` for all modes but iptables")
	flag.StringVar(&o.legacy, "iptables-sizes", "1000x10,2000x10", "`SERVICESxENDPOINTS` for iptables modes")
	flag.StringVar(&o.output, "output", "../../docs/benchmarks/peers.json", "join the figures with those of this file; the table and pictures go beside it")
	flag.StringVar(&o.render, "render", "", "measure nothing, write the table and pictures of this `FILE` again")
	flag.StringVar(&o.readme, "readme", "", "write the verdicts into this `FILE` too, between its marks")
	flag.BoolVar(&o.fresh, "fresh", false, "forget the figures that the file has")
	flag.BoolVar(&o.counts, "counts", false, "measure only what changes of the number of endpoints cost Sluice, and print it")
	flag.BoolVar(&o.keep, "keep", false, "keep the programs' logs")
	flag.StringVar(&o.watch, "watch", "", "measure nothing, be the process of the floor that only watches with this `KUBECONFIG`")
	flag.DurationVar(&o.limits.ColdStart, "cold-start", 3*time.Minute, "wait for every Service to answer")
	flag.IntVar(&o.limits.Samples, "samples", 50, "endpoints replaced at each rate, at most")
	flag.DurationVar(&o.limits.Budget, "budget", 12*time.Second, "replace no more after")
	flag.DurationVar(&o.limits.Patience, "patience", 36*time.Second, "wait for none after")
	flag.DurationVar(&o.limits.Idle, "idle", 8*time.Second, "watch an idle proxy for")
	flag.DurationVar(&o.limits.Burst, "burst", 200*time.Millisecond, "a burst of connections")
	flag.Parse()
	o.limits.Rates = []int{0, 50, 200} // idle first
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	switch {
	case o.watch != "":
		return load.Watch(ctx, o.watch)
	case o.render != "":
		r, err := figures.Read(o.render)
		if err != nil {
			return err
		}
		return o.write(r, o.render)
	case o.limits.Patience <= o.limits.Budget:
		return fmt.Errorf("--patience %v must be more than --budget %v", o.limits.Patience, o.limits.Budget)
	case os.Geteuid() != 0:
		return errors.New("the nodes are network namespaces: run as root")
	}
	// Threads that wait in system calls shall not make others wait.
	const parallel = 8
	runtime.GOMAXPROCS(max(parallel, runtime.NumCPU()))
	dir, err := os.MkdirTemp("", "sluice-peers-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	b := &benchmark{options: o, began: time.Now(), dir: dir, report: &figures.Report{}}
	measure := b.run
	if o.counts {
		measure = b.runCounts
	}
	if err := measure(ctx); err != nil {
		return fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	if o.keep {
		b.say("the logs of all programs are in " + dir)
		return nil
	}
	return os.RemoveAll(dir)
}

// write writes everything that is made of the figures.
func (o options) write(r *figures.Report, path string) error {
	err := render.Write(r, path)
	if o.readme != "" {
		err = errors.Join(err, render.WritePromises(r, o.readme))
	}
	return err
}
