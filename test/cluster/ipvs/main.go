// Command ipvs measures the mode ipvs of Sluice and of kube-proxy side by side,
// in a virtual machine, since not every kernel has IPVS: an API server in memory,
// one proxy after the other on a fresh node, several rounds. It builds what it
// needs and writes a page with the medians.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"sluice/test/cluster/build"
	"sluice/test/vm/guest"
)

var (
	kernel  = flag.String("kernel", "6.1", "boot this `VERSION`")
	output  = flag.String("output", "../../docs/benchmarks/ipvs.md", "write the page to this `FILE`")
	timeout = flag.Duration("timeout", 3*time.Hour, "how long the virtual machine may live")
	sizes   = flag.String("sizes", "1000x10,10000x10", "`SERVICESxENDPOINTS`")
	rounds  = flag.Int("rounds", 3, "how often each proxy has its turn at each size")
	starts  = flag.String("starts", "", "the `SIZES` at which only cold starts are measured: for a change kube-proxy takes minutes")
	inside  = flag.Bool("inside", false, "measure here, with the programs of the folder /programs")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	run := boot
	if *inside {
		run = measure
	}
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

// Where things are in the guest.
const (
	programs = "/programs"
	page     = "/results/ipvs.md"
)

// boot builds everything, measures in the guest and keeps the page.
func boot(ctx context.Context) error {
	say := func(line string) { fmt.Fprintln(os.Stderr, line) }
	b, err := build.New(say)
	if err != nil {
		return err
	}
	sluice, err := b.Daemon(ctx)
	if err != nil {
		return err
	}
	kubeProxy, err := b.Foreign(ctx, build.Kubernetes("kube-proxy"))
	if err != nil {
		return err
	}
	self, err := b.Own(ctx, b.Module, "./ipvs", "ipvs")
	if err != nil {
		return err
	}
	cache, err := guest.Open(say)
	if err != nil {
		return err
	}
	results, err := os.MkdirTemp("", "sluice-ipvs-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(results) }()
	job := guest.Job{
		Kernel: *kernel, Timeout: *timeout, Output: os.Stderr, Results: results,
		Command: []string{programs + "/ipvs", "--inside", "--sizes=" + *sizes, fmt.Sprintf("--rounds=%d", *rounds), "--starts=" + *starts},
	}
	for name, path := range map[string]string{"ipvs": self, "sluice": sluice, "kube-proxy": kubeProxy} {
		job.Add(filepath.Join(programs, name), path)
	}
	status, err := cache.Run(ctx, job)
	if err == nil && status != 0 {
		err = fmt.Errorf("the guest ended with status %d", status)
	}
	text, failed := os.ReadFile(filepath.Join(results, filepath.Base(page)))
	if failed == nil {
		failed = os.WriteFile(*output, text, 0o644)
	}
	return errors.Join(err, failed)
}
