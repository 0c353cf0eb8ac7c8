// Command sockets measures mode ebpf beside mode nftables, kube-proxy's mode
// nftables and direct connections, all in one run and by turns, in network
// namespaces. It needs root and a cgroup2, and writes a page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/mode"
)

var (
	output = flag.String("output", "", "write the page to this `FILE`")
	series = flag.Int("series", 11, "make all nodes anew for each of so many `SERIES` of rounds")
	rounds = flag.Int("rounds", 220, "compare so many `ROUNDS`, all ways in each")
	steps  = flag.Int("steps", 100, "make so many `CONNECTIONS` in a round")
	storms = flag.Int("storms", 10, "have each pod ask from 250 sockets so many `TIMES`")
	others = flag.Bool("kube-proxy", true, "measure kube-proxy too")
)

func main() {
	flag.Parse()
	runtime.LockOSThread() // programs end with the thread that started them
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	text, err := "", error(nil)
	if *series < 1 || *rounds < *series {
		err = errors.New("--series must be 1 at least, and --rounds as many")
	} else {
		text, err = run(ctx)
	}
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
	groups, err := traffic.NewCgroups()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, groups.Close()) }()
	bpffs, err := groups.MountBPF()
	if err != nil {
		return "", err
	}
	var all []way
	var speeds []*speed
	storms := map[bool]map[string]*storm{}
	for n := range *series {
		say(fmt.Sprintf("series %d of %d", n+1, *series))
		err := onNodes(ctx, groups, filepath.Join(bpffs, fmt.Sprint(n)), func(ways []way) error {
			s, err := measureSpeed(ctx, ways)
			speeds, all = append(speeds, s), ways
			for _, connected := range []bool{true, false} {
				if err == nil && n == 0 {
					storms[connected], err = measureStorm(ctx, ways, connected)
				}
			}
			return err
		})
		if err != nil {
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
	return head() + speedTable(all, speeds) + stormTable(all, storms) + c.table(), nil
}

// onNodes does something with nodes of all ways, which are made for it. Each way has a
// node of its own: of two nodes, the one that is used more often is faster, since the
// processor has more of it in its caches. Only kube-proxy's ways share one, which needs
// an API server.
func onNodes(ctx context.Context, groups *traffic.Cgroups, pins string, do func([]way) error) (err error) {
	all := slices.Clone(ways)
	for i := range all {
		w := &all[i]
		w.settings.MasqueradeBit, w.settings.EBPF.BPFRoot = 14, fmt.Sprint(pins, "-", i)
		if w.settings.EBPF.CgroupRoot, err = groups.Add(); err != nil {
			return err
		}
		if w.bed, err = newBed(ctx, w.settings); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.bed.close()) }()
	}
	if *others {
		theirs, failed := newKubeProxyBed(ctx, say)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, theirs.close()) }()
		all = append(all, way{name: "direct, node of kube-proxy", bed: theirs}, way{name: "kube-proxy nftables", through: true, bed: theirs})
	}
	return do(all)
}

func say(line string) { fmt.Fprintln(os.Stderr, line) }
