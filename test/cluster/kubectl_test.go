package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/statusapi"
	"sluice/test/cluster/build"
	"sluice/test/cluster/pki"
	"sluice/test/cluster/podexec"
	"sluice/test/cluster/testbed"
)

// daemonNamespace is where the pods of daemons are.
const daemonNamespace = "kube-system"

// plugin is kubectl sluice, as a user of the cluster has it.
type plugin struct {
	*scene
	program string
	running atomic.Int32 // commands in pods
}

// newPlugin makes pods of the daemons that run, and kubelets that run commands
// in them.
func newPlugin(s *scene) *plugin {
	s.Helper()
	p := &plugin{scene: s}
	b, err := build.New(say)
	if err != nil {
		s.Fatal(err)
	}
	if p.program, err = b.Own(s.Context(), b.Root, "./cmd/kubectl-sluice", "kubectl-sluice"); err != nil {
		s.Fatal(err)
	}
	// The pods' own account, which a controller would make.
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := bed.Client.CoreV1().ServiceAccounts(daemonNamespace).Create(s.Context(), account, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		p.delete("ServiceAccount", bed.Client.CoreV1().ServiceAccounts(daemonNamespace).Delete, "default")
	})
	for _, n := range bed.Nodes {
		p.daemonPod(n)
		p.kubelet(n)
	}
	return p
}

func (p *plugin) delete(kind string, del func(context.Context, string, metav1.DeleteOptions) error, name string) {
	p.Helper()
	if err := del(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		p.Errorf("delete %s %s: %v", kind, name, err)
	}
}

// daemonPod creates the pod of a node's daemon, as the DaemonSet's controller and the
// kubelet would.
func (p *plugin) daemonPod(n *testbed.Node) {
	p.Helper()
	pods := bed.Client.CoreV1().Pods(daemonNamespace)
	pod, err := pods.Create(p.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "sluice-" + n.Name, Labels: map[string]string{"app.kubernetes.io/name": "sluice"}},
		Spec: v1.PodSpec{
			NodeName: n.Name, HostNetwork: true, AutomountServiceAccountToken: new(false),
			Containers: []v1.Container{{Name: "sluice", Image: "sluice"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { p.delete("pod", pods.Delete, pod.Name) })
	pod.Status.Phase = v1.PodRunning
	pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "sluice", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	if _, err := pods.UpdateStatus(p.Context(), pod, metav1.UpdateOptions{}); err != nil {
		p.Fatal(err)
	}
}

// kubelet runs commands on a node as if they were in the daemon's pod: with the
// program and the socket where the image has them.
func (p *plugin) kubelet(n *testbed.Node) {
	p.Helper()
	pair, err := bed.Authority.Issue(pki.Identity{Name: "kubelet-" + n.Name, Addrs: n.Addrs})
	if err != nil {
		p.Fatal(err)
	}
	k, err := podexec.Start(podexec.Settings{
		Host: n.Host, Addr: n.Addrs[0], Pair: pair, Running: &p.running,
		Command: func(_ string, args []string) (*exec.Cmd, error) {
			if args[0] != "/usr/local/bin/sluice" {
				return nil, fmt.Errorf("exec: %q: executable file not found", args[0])
			}
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], statusapi.DefaultSocket, bed.StatusSocket(n))
			}
			return exec.Command(bed.Sluice(), args[1:]...), nil
		},
	})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = k.Close() })
}

// user makes a user with some rights in the namespace of the daemons.
func (p *plugin) user(name string, rules ...rbacv1.PolicyRule) pki.User {
	p.Helper()
	files, err := bed.NewUser(pki.Identity{Name: name})
	if err != nil {
		p.Fatal(err)
	}
	if len(rules) == 0 {
		return files
	}
	roles, bindings := bed.Client.RbacV1().Roles(daemonNamespace), bed.Client.RbacV1().RoleBindings(daemonNamespace)
	meta := metav1.ObjectMeta{Name: name}
	_, err = roles.Create(p.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	if err == nil {
		_, err = bindings.Create(p.Context(), &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		p.delete("RoleBinding", bindings.Delete, name)
		p.delete("Role", roles.Delete, name)
	})
	return files
}

// command is a command line of a user.
func (p *plugin) command(u pki.User, args ...string) *exec.Cmd {
	cmd := exec.Command(p.program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+u.Kubeconfig())
	return cmd
}

// run runs one and returns what it wrote and its exit code.
func (p *plugin) run(u pki.User, args ...string) (stdout, stderr string, code int) {
	p.Helper()
	var out, errs bytes.Buffer
	cmd := p.command(u, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := bed.Hub().Start(cmd); err != nil {
		p.Fatal(err)
	}
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		p.Fatal(err)
	}
	p.Logf("$ kubectl sluice %s\n%s%s(exit code %d)", strings.Join(args, " "), &out, &errs, code)
	return out.String(), errs.String(), code
}

// expectRun runs one, which must exit with a code and write all of some words.
func (p *plugin) expectRun(u pki.User, code int, args []string, words ...string) string {
	p.Helper()
	out, errs, got := p.run(u, args...)
	if got != code {
		p.Errorf("%q: exit code %d, want %d", args, got, code)
	}
	for _, w := range words {
		if !strings.Contains(out+errs, w) {
			p.Errorf("%q does not say %q", args, w)
		}
	}
	if code == 2 && (out != "" || strings.Count(errs, "\n") != 1) {
		p.Errorf("%q says more than a line of what is wrong", args)
	}
	return out
}

var (
	listPods   = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}
	createExec = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create"}}
)

// TestKubectl asks the daemons of all nodes from elsewhere: what they agree on
// is said once, who differs or does not answer has a line.
func TestKubectl(t *testing.T) {
	p := newPlugin(newScene(t))
	web, local := p.service("web"), p.service("local", func(svc *v1.Service) {
		svc.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyLocal)
	})
	p.publish(web, ready(p.pods("web")...)...)
	p.publish(local, ready(p.pod(bed.Nodes[0], "local"))...)
	operator := p.user("operator", listPods, createExec)

	p.await("what nodes say of themselves", "true", func() string { // endpoints may arrive after the wait
		out := p.expectRun(operator, 0, []string{"status", "--wait=60s"}, "NODE ", "node-1 ", "node-2 ", "node-3 ")
		return fmt.Sprint(strings.Contains(out, "node-1   nftables   InForce ") &&
			strings.Contains(out, "node-2   nftables   NeedsAttention ")) // it has no endpoint of the local Service
	})
	p.expectRun(operator, 0, []string{"status", p.namespace + "/web"}, "node-1: the same on 3 nodes\n", "Service "+p.namespace+"/web\n")
	p.expectRun(operator, 0, []string{"status", "web", "-n", p.namespace, "-o", "json"}, `"node": "node-3"`)
	p.expectRun(operator, 0, []string{"explain", p.namespace + "/web:tcp"}, "node-1: the same on 3 nodes\n", "FORWARD")
	p.expectRun(operator, 1, []string{"explain", p.namespace + "/local:tcp"},
		"node-2: the same on 2 of 3 nodes\n", "NoLocalEndpoint", "DIFFERENT ON 1 NODE:\n  node-1: forward (Forwarded); goes to: ")
	p.expectRun(operator, 1, []string{"explain", p.namespace + "/local:tcp", "--node", "node-2"}, "NoLocalEndpoint")
	p.expectRun(operator, 0, []string{"status", "--node", "node-2", "-A"}, "node-2: mode nftables", p.namespace)
	p.expect(probe{p.clients[0], clusterIPs(local)[0], "local"})
	p.await("the Service in top", "true", func() string { // daemons count once a second at most
		out := p.expectRun(operator, 0, []string{"top", "--period", "300ms"}, "SERVICE ")
		return fmt.Sprint(strings.Contains(out, p.namespace+"/local   tcp/TCP "))
	})

	p.expectRun(operator, 2, []string{"status", "none/such"}, "no Service none/such is served here")
	p.expectRun(operator, 2, []string{"status", "--node", "node-9"}, "no pod of sluice on this node")
	p.expectRun(operator, 2, []string{"status", "--daemon-namespace", "default"}, "no permission to list pods in namespace default")
	p.expectRun(operator, 2, []string{"status", "-l", "app=other"}, "no pods of sluice in namespace kube-system")
	p.expectRun(p.user("nobody"), 2, []string{"status"}, "Error: no permission to list pods in namespace kube-system")
	p.expectRun(p.user("lister", listPods), 2, []string{"status"}, "Error: no permission to run a command in the daemon's pod: verb create on pods/exec in namespace kube-system is required\n")
	admin, err := bed.NewUser(pki.Identity{Name: "admin", Groups: []string{"system:masters"}})
	if err != nil {
		t.Fatal(err)
	}
	p.expectRun(admin, 2, []string{"status", "--node", "node-9"}, "Error: no node node-9 (kubectl get nodes)\n")

	if err := p.proxies[2].Stop(); err != nil {
		t.Fatal(err)
	}
	p.expectRun(operator, 1, []string{"status"}, "node-2   nftables", "NO ANSWER FROM 1 NODE:\n  node-3: pod kube-system/sluice-node-3: no daemon answers at ")
	p.expectRun(operator, 1, []string{"explain", p.namespace + "/web:tcp"}, "node-1: the same on 2 nodes\n", "  node-3: pod kube-system/sluice-node-3: no daemon")
	if err := bed.RegisterAs(t.Context(), bed.Nodes[0], "bare-node"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.delete("Node", bed.Client.CoreV1().Nodes().Delete, "bare-node") })
	p.expectRun(admin, 1, []string{"status"}, "  bare-node: no pod of sluice on this node")
	p.await("commands that are left in pods", "0", func() string { return fmt.Sprint(p.running.Load()) })
}

// TestKubectlPage serves the pages of nodes on loopback, and ends when it is
// interrupted.
func TestKubectlPage(t *testing.T) {
	p := newPlugin(newScene(t))
	operator := p.user("operator", listPods, createExec)
	p.expectRun(operator, 0, []string{"status", "--wait=60s"})
	for _, tt := range []struct {
		args []string
		path string
	}{
		{[]string{"page", "--node", "node-2"}, ""},
		{[]string{"page"}, "nodes/node-2/"},
	} {
		cmd := p.command(operator, tt.args...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := bed.Hub().Start(cmd); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		link, _, _ := strings.Cut(line, " ")
		for path, want := range map[string]string{"": "Sluice", tt.path: `src="page.js"`, tt.path + "v1/node": `"name":"node-2"`} {
			if code, body := p.browse(link+path, ""); code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%q: %s: HTTP %d, %.200s; want %q in it", tt.args, path, code, body, want)
			}
		}
		if code, body := p.browse(link+tt.path+"v1/node", "evil.example"); code != http.StatusForbidden {
			t.Errorf("%q, as another site: HTTP %d, %.200s", tt.args, code, body)
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%q ended with %v", tt.args, err)
		}
	}
	p.await("commands that are left in pods", "0", func() string { return fmt.Sprint(p.running.Load()) })
}

// browse asks where the plugin runs, by a name of the host if there is one.
func (p *plugin) browse(link, host string) (int, string) {
	p.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = bed.Hub().Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	req, err := http.NewRequestWithContext(p.Context(), http.MethodGet, link, nil)
	if err != nil {
		p.Fatal(err)
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		p.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Error(err)
	}
	return resp.StatusCode, string(body)
}
