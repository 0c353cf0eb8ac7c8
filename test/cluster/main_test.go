package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/test/cluster/build"
	"sluice/test/cluster/testbed"
)

// bed is the cluster that all tests share. TestMain sets it, nobody else does.
var bed *testbed.Cluster

// What to run instead of what is built: in a virtual machine there is no compiler,
// and a real API server takes too long.
var (
	daemon   = flag.String("daemon", "", "run this `PROGRAM` on the nodes instead of building the daemon of this tree")
	foreign  = flag.String("kube-proxy", "", "run this `PROGRAM` as the real kube-proxy instead of building it")
	release  = flag.String("kubernetes", build.Newest, "run the API server of this `VERSION` of Kubernetes")
	inMemory = flag.Bool("in-memory", false, "run an API server in memory instead of the real one and its etcd")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		say("needs root, and builds an API server from sources of the network; left out by -short")
		os.Exit(0)
	}
	code, err := run(m)
	if err != nil {
		say(err.Error())
		code = 1
	}
	os.Exit(code)
}

func say(line string) { fmt.Fprintln(os.Stderr, "cluster:", line) }

// run starts the cluster, runs the tests and ends the cluster. The logs of its
// programs stay where a test has failed.
func run(m *testing.M) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("the cluster is made of network namespaces: run as root")
	}
	dir, err := os.MkdirTemp("", "sluice-cluster-")
	if err != nil {
		return 1, fmt.Errorf("make a folder: %w", err)
	}
	settings, err := programs(context.Background())
	if err != nil {
		return 1, errors.Join(err, os.RemoveAll(dir))
	}
	settings.Dir, settings.Sockets = dir, slices.Contains(strings.Split(*modes, ","), testbed.EBPF)
	if *themes != "" {
		settings.APIServerFlags = []string{"--service-node-port-range=3000-32767"} // the table has low ones
	}
	started := time.Now()
	if bed, err = testbed.Start(context.Background(), settings); err != nil {
		return 1, fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	say(fmt.Sprintf("the control plane was ready after %.1f s", time.Since(started).Seconds()))
	code = m.Run()
	if err := bed.Close(); err != nil {
		return 1, fmt.Errorf("end the cluster: %w", err)
	}
	if code != 0 {
		say("the logs of all programs are in " + dir)
		return code, nil
	}
	return 0, bed.Remove()
}

// programs builds what is missing.
func programs(ctx context.Context) (testbed.Settings, error) {
	s := testbed.Settings{Proxy: *daemon, KubeProxy: *foreign}
	if *inMemory && s.Proxy != "" && s.KubeProxy != "" {
		return s, nil
	}
	b, err := build.New(say)
	if err != nil {
		return s, err
	}
	if !*inMemory {
		if s.Etcd, s.APIServer, err = b.ControlPlane(ctx, *release); err != nil {
			return s, err
		}
	}
	if s.KubeProxy == "" {
		if s.KubeProxy, err = b.Foreign(ctx, build.Kubernetes("kube-proxy")); err != nil {
			return s, err
		}
	}
	if s.Proxy == "" {
		s.Proxy, err = b.Daemon(ctx)
	}
	return s, err
}
