package kubectl

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// run runs a command line and returns its output, with the error last, and the exit
// code.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := NewCommand("v1.2.3")
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	if err == nil {
		return out.String(), 0
	}
	exit, ok := errors.AsType[*cli.ExitError](err)
	if !ok {
		t.Errorf("%q: %v has no exit code", args, err)
		return err.Error(), 0
	}
	if exit.Err != nil {
		out.WriteString(exit.Error())
	}
	return out.String(), exit.Code
}

func healthy(name string) map[string]any {
	return map[string]any{statusapi.NodePath: statusapi.Node{
		Name: name, Mode: "nftables", Health: statusapi.Health{Healthy: true}, Sync: statusapi.Sync{Done: true}, Version: "v1.2.3",
	}}
}

func newServer(t *testing.T) *apiServer {
	return &apiServer{t: t, processes: map[string]process{}}
}

func pods(changes ...func(*v1.Pod)) []func(*v1.Pod) { return changes }

// TestUnreachable checks that every reason why a node cannot be asked is reported in
// one line.
func TestUnreachable(t *testing.T) {
	waits := func(_ []string, s streams) (int, string) {
		_, _ = io.Copy(io.Discard, s.stdin)
		return 0, ""
	}
	tests := []struct {
		name    string
		process process
		changes []func(*v1.Pod)
		want    string
	}{
		{"no daemon", says(2, "Error: no daemon answers at /run/sluice/status.sock"), nil, "pod kube-system/p: no daemon answers at /run/sluice/status.sock"},
		{"control characters", says(2, "Error: \x1b[2Jgone"), nil, "pod kube-system/p: \ufffd[2Jgone"},
		{"an old daemon", says(1, `Error: unexpected argument "dial-stdio": sluice takes flags only`), nil, "pod kube-system/p: its sluice is too old to be asked from elsewhere: update it"},
		{"silence", says(3, ""), nil, "pod kube-system/p: /usr/local/bin/sluice dial-stdio ended with exit code 3"},
		{"no output", says(0, ""), nil, "pod kube-system/p: unexpected EOF"},
		{"another image", func([]string, streams) (int, string) {
			return 0, `error executing command in container: exec: "/usr/local/bin/sluice": stat: no such file or directory`
		}, nil, "pod kube-system/p: it has no /usr/local/bin/sluice: does it run sluice?"},
		{"nothing happens", waits, nil, "no answer within 100ms (--timeout)"},
		{"not started", nil, pods(func(p *v1.Pod) { p.Status.Phase = v1.PodPending }), "pod kube-system/p is Pending (kubectl -n kube-system describe pod p)"},
		{"no image", nil, pods(func(p *v1.Pod) {
			p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "sluice", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
		}), "pod kube-system/p is not running: ImagePullBackOff (kubectl -n kube-system describe pod p)"},
		{"ended", nil, pods(func(p *v1.Pod) {
			p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "sluice", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 1}}}}
		}), "pod kube-system/p is not running: it ended with exit code 1 (kubectl -n kube-system describe pod p)"},
		{"leaving", nil, pods(func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), "pod kube-system/p is terminating: try again"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newServer(t)
			a.nodes = []string{"n"}
			a.add("n", "p", tt.process, tt.changes...)
			config := a.kubeconfig()
			timeout := "30s"
			if tt.name == "nothing happens" {
				timeout = "100ms"
			}
			out, code := run(t, "status", "--kubeconfig", config, "--timeout", timeout)
			if out != tt.want || code != cli.ExitNoAnswer {
				t.Errorf("exit code %d, said\n%s\nwant\n%s", code, out, tt.want)
			}
			if out, code = run(t, "status", "--kubeconfig", config, "--timeout", timeout, "--node", "n"); out != "node n: "+tt.want || code != cli.ExitNoAnswer {
				t.Errorf("--node: exit code %d, said\n%s", code, out)
			}
		})
	}
}

// TestMistakes checks that every error that occurs before a node is asked is reported in
// one line.
func TestMistakes(t *testing.T) {
	noConfig(t)
	a := newServer(t)
	a.nodes = []string{"n", "bare"}
	a.add("n", "p", dials(t, answers(healthy("n"))))
	config := a.kubeconfig()
	lacking := newServer(t)
	lacking.forbidden = "pods"
	lackingExec := newServer(t)
	lackingExec.forbidden = "pods/exec"
	lackingExec.add("n", "p", nil)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"status"}, "no kubeconfig: use --kubeconfig FILE, or set KUBECONFIG"},
		{[]string{"status", "--kubeconfig", "/none"}, "read the kubeconfig: stat /none: no such file or directory"},
		{[]string{"status", "--kubeconfig", config, "--context", "other"}, `read the kubeconfig: context "other" does not exist`},
		{[]string{"status", "--kubeconfig", config, "--server", "http://127.0.0.1:1"}, "list pods: Get \"http://127.0.0.1:1/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io%2Fname%3Dsluice&limit=500\": dial tcp 127.0.0.1:1: connect: connection refused"},
		{[]string{"status", "--kubeconfig", config, "-l", "a b"}, `--selector "a b": want labels like app=sluice`},
		{[]string{"status", "--kubeconfig", config, "--node", "none"}, "no node none (kubectl get nodes)"},
		{[]string{"status", "--kubeconfig", config, "--node", "bare"}, "node bare: no pod of sluice on this node (searched in namespace kube-system)"},
		{[]string{"status", "--kubeconfig", config, "-w"}, "--watch requires --node NAME: only one node can be followed"},
		{[]string{"status", "--kubeconfig", config, "-o", "xml"}, `--output "xml": want wide, json, yaml, name`},
		{[]string{"status", "--kubeconfig", config, "cart", "--node", "n"}, "node n: no /v1/services/shop/cart"},
		{[]string{"explain", "--kubeconfig", config}, "accepts 1 arg(s), received 0"},
		{[]string{"explain", "--kubeconfig", config, "a/b", "--nope"}, "unknown flag: --nope (did you mean --node? kubectl sluice explain --help lists the flags)"},
		{[]string{"stats"}, `no command "stats": did you mean kubectl sluice status?`},
		{[]string{"frobnicate"}, `no command "frobnicate": kubectl sluice --help lists them`},
		{[]string{"--nope"}, "unknown flag: --nope (did you mean --node? kubectl sluice --help lists the flags)"},
		{[]string{"top", "--kubeconfig", config, "--period", "1ms"}, "--period 1ms: want at least 100ms"},
		{[]string{"status", "--kubeconfig", lacking.kubeconfig()}, "no permission to list pods in namespace kube-system: ask an administrator of the cluster for it"},
		{[]string{"explain", "--kubeconfig", lackingExec.kubeconfig(), "a/b"}, "no permission to run a command in the daemon's pod: verb create on pods/exec in namespace kube-system is required"},
		{[]string{"status", "--kubeconfig", lackingExec.kubeconfig()}, "no permission to run a command in the daemon's pod: verb create on pods/exec in namespace kube-system is required"},
	} {
		if out, code := run(t, tt.args...); out != tt.want || code != cli.ExitNoAnswer {
			t.Errorf("%q: exit code %d, said\n%s\nwant\n%s", tt.args, code, out, tt.want)
		}
	}
}

// TestWhichPods checks that only pods of daemons are asked, and only one on each node.
func TestWhichPods(t *testing.T) {
	labelled := func(p *v1.Pod) {
		p.Labels = map[string]string{"k8s-app": "kube-proxy"}
		p.Spec.Containers = []v1.Container{{Name: "beside"}, {Name: "kube-proxy"}}
	}
	never := says(1, "not this one")
	a := newServer(t)
	a.nodes = []string{"n1", "n2", "n3"}
	a.forbidden = "nodes"
	for _, n := range a.nodes {
		a.add(n, "pod-"+n, dials(t, answers(healthy(n))), labelled)
	}
	a.add("n1", "leaving", never, labelled, func(p *v1.Pod) {
		p.DeletionTimestamp, p.CreationTimestamp = &metav1.Time{Time: time.Now()}, metav1.Now()
	})
	a.add("", "homeless", never, labelled)
	check := func(want string) {
		t.Helper()
		out, code := run(t, "status", "--kubeconfig", a.kubeconfig())
		var nodes []string
		for line := range strings.Lines(out) {
			if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "n") {
				nodes = append(nodes, name)
			}
		}
		if got := strings.Join(nodes, " "); got != want || code != 0 {
			t.Errorf("exit code %d, asked %s, want %s:\n%s", code, got, want, out)
		}
	}
	check("n1 n2 n3")
	if a.lists != 1+3 { // none with our own label, and five with kube-proxy's, two at a time
		t.Errorf("pods were listed %d times", a.lists)
	}
	checkEnded(t, a)
	a.spdyOnly = true
	check("n1 n2 n3")
	checkEnded(t, a)
	a.add("n4", "own", dials(t, answers(healthy("n4"))))
	check("n4")
}

// checkEnded waits until no process runs in any pod.
func checkEnded(t *testing.T, a *apiServer) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); a.running.Load() > 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%d processes are left in pods", a.running.Load())
		}
	}
}

// TestWait waits during a rollout: a pod is replaced, and the new daemon is not synced
// at first. A node on which everything is in force is not asked again.
func TestWait(t *testing.T) {
	a := newServer(t)
	a.nodes = []string{"n1", "n2"}
	asked := [2]atomic.Int32{}
	node := func(i, from int32) any {
		return func() any {
			return statusapi.Node{Health: statusapi.Health{Healthy: true}, Sync: statusapi.Sync{Done: asked[i].Add(1) >= from}}
		}
	}
	a.add("n1", "p1", dials(t, answers(map[string]any{statusapi.NodePath: node(0, 1)})))
	a.add("n2", "old", says(1, "gone"))
	a.processes["new"] = dials(t, answers(map[string]any{statusapi.NodePath: node(1, 2)}))
	a.processes["old"] = func([]string, streams) (int, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.pods[1].Name = "new"
		return 0, "the container has gone"
	}
	out, code := run(t, "status", "--wait=20s", "--kubeconfig", a.kubeconfig())
	if code != 0 || asked[0].Load() != 2 || asked[1].Load() != 3 { // and once each for the answer
		t.Errorf("exit code %d, asked %d and %d times, said\n%s", code, asked[0].Load(), asked[1].Load(), out)
	}
	a.processes["new"] = says(2, "Error: no daemon")
	for _, args := range [][]string{{"status", "--wait=1200ms"}, {"status", "--wait=0ms"}, {"status", "--wait=1200ms", "--node", "n2"}} {
		out, code = run(t, append(args, "--kubeconfig", a.kubeconfig())...)
		waited := map[string]string{"--wait=1200ms": "1.2s", "--wait=0ms": "0s"}[args[1]]
		wantCode := cli.ExitFinding
		if len(args) > 2 {
			wantCode = cli.ExitNoAnswer // The only node that was asked did not answer.
		}
		if want := "waited " + waited + ": node n2: pod kube-system/new: no daemon"; code != wantCode || out != want {
			t.Errorf("%q: exit code %d, said\n%s\nwant %d\n%s", args, code, out, wantCode, want)
		}
	}
}

// TestNamespace checks that -n selects the Services that all nodes are asked about, also
// with --problems.
func TestNamespace(t *testing.T) {
	a := newServer(t)
	a.nodes = []string{"n1", "n2", "n3"}
	for i, n := range a.nodes {
		all := healthy(n)
		all[statusapi.ProblemsPath] = statusapi.ProblemList{}
		cart := statusapi.ServiceSummary{Namespace: "shop", Name: "cart", State: statusapi.InForce, Used: 1}
		if i == 1 {
			cart.State = statusapi.Refused
		}
		all[statusapi.ServicesPath] = statusapi.ServiceList{Items: []statusapi.ServiceSummary{cart}}
		a.add(n, "p-"+n, dials(t, answers(all)))
	}
	out, code := run(t, "status", "-n", "shop", "--problems", "--kubeconfig", a.kubeconfig())
	if code != cli.ExitFinding || !strings.HasPrefix(out, "n1: the same on 2 of 3 nodes\n") || !strings.HasSuffix(out, "\nDIFFERENT ON 1 NODE:\n  n2: shop/cart: Refused\n") {
		t.Errorf("exit code %d, said\n%s", code, out)
	}
}

// TestTopSum checks the sum of all nodes if one of them does not answer.
func TestTopSum(t *testing.T) {
	counted := func(step uint64) any {
		at := time.Now()
		n := uint64(0)
		return func() any {
			at, n = at.Add(time.Second), n+step
			return statusapi.TrafficList{Counted: at, Total: 1, Items: []statusapi.PortTraffic{{
				Namespace: "shop", Name: "cart", Port: "http", Protocol: "TCP", Traffic: statusapi.Traffic{Connections: new(n)},
			}}}
		}
	}
	a := newServer(t)
	a.nodes = []string{"n1", "n2", "n3"}
	a.add("n1", "p1", dials(t, answers(map[string]any{statusapi.TrafficPath: counted(10)})))
	a.add("n2", "p2", dials(t, answers(map[string]any{statusapi.TrafficPath: counted(5)})))
	out, code := run(t, "top", "--kubeconfig", a.kubeconfig(), "--period", "100ms")
	want := "SERVICE     PORT       NEW/S   ACTIVE   IN B/S   OUT B/S   REFUSED/S   TOTAL\n" +
		"shop/cart   http/TCP   15      -        -        -         0           30\n" +
		"\nNO ANSWER FROM 1 NODE:\n  n3: no pod of sluice on this node (searched in namespace kube-system)\n"
	if !strings.HasSuffix(out, want) || code != cli.ExitFinding {
		t.Errorf("exit code %d, said\n%s\nwant\n%s", code, out, want)
	}
}

// TestSumKeepsNodes checks that a node that stops answering keeps its counters and
// does not slow down the clock, which would make the others look busier, and that a
// node that answers only later is left out.
func TestSumKeepsNodes(t *testing.T) {
	list := func(n uint64) any {
		return statusapi.TrafficList{Counted: time.Unix(int64(n), 0), Items: []statusapi.PortTraffic{{Name: "a", Traffic: statusapi.Traffic{Connections: new(n)}}}}
	}
	first := map[string]any{statusapi.TrafficPath: list(10)}
	second := map[string]any{statusapi.TrafficPath: list(20)}
	late := map[string]any{}
	a := newServer(t)
	for i, answer := range []map[string]any{first, second, late} {
		name := string(rune('a' + i))
		a.nodes = append(a.nodes, name)
		a.add(name, "pod-"+name, dials(t, answers(answer)))
	}
	f := &flags{loading: &clientcmd.ClientConfigLoadingRules{ExplicitPath: a.kubeconfig()}, daemonNamespace: "kube-system", socket: statusapi.DefaultSocket, timeout: 30 * time.Second}
	_, all, err := f.daemons(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &sum{all: all}
	var before time.Time
	read := func(connections uint64, elapsed time.Duration) {
		t.Helper()
		got, err := s.traffic(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := *got.Items[0].Connections; n != connections || !before.IsZero() && got.Counted.Sub(before) != elapsed {
			t.Errorf("%d connections after %v, want %d after %v", n, got.Counted.Sub(before), connections, elapsed)
		}
		before = got.Counted
	}
	read(30, 0)
	first[statusapi.TrafficPath], second[statusapi.TrafficPath] = list(11), list(23)
	read(34, 2*time.Second)
	delete(second, statusapi.TrafficPath)
	first[statusapi.TrafficPath], late[statusapi.TrafficPath] = list(13), list(1000)
	read(36, 2*time.Second)
	delete(first, statusapi.TrafficPath)
	read(36, 0)
}

// TestCompletion completes commands, flag values, nodes and Services.
func TestCompletion(t *testing.T) {
	a := newServer(t)
	a.nodes = []string{"n1", "n2"}
	a.add("n1", "p", nil)
	config := a.kubeconfig()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"st"}, "status"},
		{[]string{"status", "sh"}, "shop/cart"},
		{[]string{"explain", "shop/cart", ""}, ""},
		{[]string{"explain", "shop/cart", "--proto", ""}, "tcp udp sctp"},
		{[]string{"top", "--node", ""}, "n1 n2"},
		{[]string{"top", "--sort-by", ""}, strings.Join(cli.TopColumns, " ")},
	} {
		out, _ := run(t, append([]string{"__complete", "--kubeconfig", config}, tt.args...)...)
		var words []string
		for line := range strings.Lines(out) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") && !strings.HasPrefix(word, "Completion ended") {
				words = append(words, word)
			}
		}
		if got := strings.Join(words, " "); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.args, got, tt.want)
		}
	}
}
