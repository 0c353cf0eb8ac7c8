// Command peers compares Sluice and kube-proxy with a real etcd and a real kube-apiserver, one
// proxy after the other on a fresh node. It builds what it needs, prints its progress, and writes
// the figures as JSON, Markdown and pictures. It needs root, and does not touch the machine's own
// network.
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

var (
	peersFlag = flag.String("peers", "sluice/nftables,sluice/iptables,kube-proxy-1.37/nftables,kube-proxy-1.37/iptables,"+
		"kube-proxy-1.36/nftables,kube-proxy-1.36/iptables", "measure these, in this order")
	sizesFlag  = flag.String("sizes", "10x10,1000x10,10000x10,30000x4", "`SERVICESxENDPOINTS` for all modes but iptables")
	legacyFlag = flag.String("iptables-sizes", "1000x10,2000x10", "`SERVICESxENDPOINTS` for iptables modes")
	output     = flag.String("output", "../../docs/benchmarks/peers.json", "merge the figures into this file; the table and pictures go beside it")
	renderOnly = flag.String("render", "", "measure nothing, render the table and pictures of this `FILE` again")
	readme     = flag.String("readme", "", "also write the verdicts into this `FILE`, between its marker lines")
	fresh      = flag.Bool("fresh", false, "discard the existing figures of the file")
	counts     = flag.Bool("counts", false, "only measure and print the cost of changing the number of endpoints, for Sluice")
	keep       = flag.Bool("keep", false, "keep the programs' logs")
	watch      = flag.String("watch", "", "internal: only watch EndpointSlices with this `KUBECONFIG`, as the floor's process")

	limits = trial.Limits{Rates: []int{0, 50, 200}} // idle first
	// settings are the flags whose help and value the page shows.
	settings = []string{"cold-start", "samples", "budget", "patience", "idle", "burst"}
)

func main() {
	flag.DurationVar(&limits.ColdStart, "cold-start", 3*time.Minute, "wait for every Service to answer")
	flag.IntVar(&limits.Samples, "samples", 50, "endpoints replaced at each rate, at most")
	flag.DurationVar(&limits.Budget, "budget", 12*time.Second, "replace no more after")
	flag.DurationVar(&limits.Patience, "patience", 36*time.Second, "wait for none after")
	flag.DurationVar(&limits.Idle, "idle", 8*time.Second, "watch an idle proxy for")
	flag.DurationVar(&limits.Burst, "burst", 200*time.Millisecond, "a burst of connections")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	switch {
	case *watch != "":
		return load.Watch(ctx, *watch)
	case *renderOnly != "":
		r, err := figures.Read(*renderOnly)
		if err != nil {
			return err
		}
		return write(r, *renderOnly)
	case limits.Patience <= limits.Budget:
		return fmt.Errorf("--patience %v must be more than --budget %v", limits.Patience, limits.Budget)
	case os.Geteuid() != 0:
		return errors.New("the nodes are network namespaces: run as root")
	}
	// Threads in system calls must not delay others.
	runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	dir, err := os.MkdirTemp("", "sluice-peers-")
	if err != nil {
		return fmt.Errorf("create a directory: %w", err)
	}
	b := &benchmark{began: time.Now(), dir: dir}
	measure := b.run
	if *counts {
		measure = b.runCounts
	}
	if err := measure(ctx); err != nil {
		return fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	if *keep {
		b.log("the logs of all programs are in " + dir)
		return nil
	}
	return os.RemoveAll(dir)
}

// write writes everything that is rendered from the figures.
func write(r *figures.Report, path string) error {
	err := render.Write(r, path)
	if *readme != "" {
		err = errors.Join(err, render.WritePromises(r, *readme))
	}
	return err
}
