package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/peers/trial"
	"sluice/test/cluster/process"
	"sluice/test/cluster/testbed"
)

// limits are wide: the processors of a virtual machine are computed.
var limits = trial.Limits{
	ColdStart: 30 * time.Minute, Samples: 10, Budget: time.Minute, Patience: 10 * time.Minute, Rates: []int{0},
}

// peers are measured alternately.
var peers = []trial.Peer{
	{Name: "sluice/ipvs", Program: filepath.Join(programs, "sluice"), Mode: testbed.IPVS},
	{Name: "kube-proxy/ipvs", Program: filepath.Join(programs, "kube-proxy"), Mode: testbed.IPVS, KubeProxy: true},
}

// measure measures everything and writes the page after each size.
func measure(ctx context.Context) error {
	// Threads that wait in system calls shall not make others wait.
	runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	var all []sized
	for text := range strings.SplitSeq(*sizes, ",") {
		size, err := figures.ParseSize(text)
		if err != nil {
			return err
		}
		s, err := measureAt(ctx, size)
		if err != nil {
			return err
		}
		all = append(all, s)
		if err := os.WriteFile(page, []byte(render(all)), 0o644); err != nil {
			return err
		}
	}
	fmt.Print(render(all))
	return nil
}

// sized is what was found at one size, by peer and round.
type sized struct {
	figures.Size
	results [][]figures.Result
}

func measureAt(ctx context.Context, size figures.Size) (s sized, err error) {
	s = sized{size, make([][]figures.Result, len(peers))}
	dir, err := os.MkdirTemp("", "cluster-")
	if err != nil {
		return s, err
	}
	b := &trial.Bench{
		Limits: limits, Log: func(line string) { fmt.Println(line) },
		Only: []figures.Stage{figures.StageColdStart, figures.StageChange(0), figures.StageMemory},
	}
	if slices.Contains(strings.Split(*starts, ","), size.String()) {
		b.Only = b.Only[:1]
	}
	if b.Cluster, err = testbed.Start(ctx, testbed.Settings{Dir: dir, Bare: true}); err != nil {
		return s, err
	}
	defer func() { _ = b.Cluster.Close() }() // it ends with the guest
	if b.Load, err = load.New(ctx, b.Cluster.ControlPlane, size, false); err != nil {
		return s, err
	}
	for range *rounds {
		for i, p := range peers {
			if err := process.SettleMachine(ctx); err != nil {
				return s, err
			}
			s.results[i] = append(s.results[i], b.Run(ctx, p))
		}
	}
	return s, nil
}
