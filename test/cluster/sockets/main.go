// Command sockets measures mode ebpf beside mode nftables, kube-proxy's mode
// nftables and direct connections, all in one run and by turns, in network
// namespaces. It needs root and a cgroup2, and writes a page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/mode"
)

var (
	output = flag.String("output", "", "write the page to this `FILE`")
	rounds = flag.Int("rounds", 1000, "compare so many `ROUNDS`, all ways in each")
	steps  = flag.Int("steps", 20, "make so many `CONNECTIONS` in a round")
	storms = flag.Int("storms", 10, "have each pod ask from 250 sockets so many `TIMES`")
	others = flag.Bool("kube-proxy", true, "measure kube-proxy too")
)

func main() {
	flag.Parse()
	runtime.LockOSThread() // programs end with the thread that started them
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	text, err := run(ctx)
	stop()
	fmt.Print(text)
	if err == nil && *output != "" {
		err = os.WriteFile(*output, []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (text string, err error) {
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
	}()
	groups, err := traffic.NewCgroups()
	if err != nil {
		return "", err
	}
	undo = append(undo, groups.Close)
	bpffs, err := os.MkdirTemp("", "sluice-bpf-")
	if err != nil {
		return "", err
	}
	undo = append(undo, func() error { return os.Remove(bpffs) })
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		return "", fmt.Errorf("mount a BPF file system: %w", err)
	}
	undo = append(undo, func() error { return unix.Unmount(bpffs, unix.MNT_DETACH) })
	var ours [3]*bed
	for i, s := range []mode.Settings{{}, {CountBytes: true}, {EBPF: mode.EBPF{Untracked: []netip.Prefix{podRange}}}} {
		s.MasqueradeBit, s.EBPF.BPFRoot = 14, filepath.Join(bpffs, fmt.Sprint("bed-", i))
		if s.EBPF.CgroupRoot, err = groups.Add(); err != nil {
			return "", err
		}
		if ours[i], err = newBed(ctx, s); err != nil {
			return "", err
		}
		undo = append(undo, ours[i].close)
	}
	var theirs *bed
	if *others {
		if theirs, err = newKubeProxyBed(ctx, say); err != nil {
			return "", err
		}
		undo = append(undo, theirs.close)
	}
	all := ways(ours, theirs)
	s, err := measureSpeed(ctx, all)
	if err != nil {
		return "", err
	}
	found := map[bool]map[string]*storm{}
	for _, connected := range []bool{true, false} {
		if found[connected], err = measureStorm(ctx, all, connected); err != nil {
			return "", err
		}
	}
	idle, err := groups.Add() // without sockets
	if err != nil {
		return "", err
	}
	c, err := measureCosts(ctx, mode.Settings{MasqueradeBit: 14, EBPF: mode.EBPF{CgroupRoot: idle, BPFRoot: bpffs}})
	if err != nil {
		return "", err
	}
	return head() + s.table(all) + stormTable(all, found) + c.table(), nil
}

func say(line string) { fmt.Fprintln(os.Stderr, line) }
