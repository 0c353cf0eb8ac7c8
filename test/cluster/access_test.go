package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
	"sluice/test/cluster/controlplane"
	"sluice/test/cluster/pki"
	"sluice/test/cluster/process"
	"sluice/test/cluster/testbed"
)

// awaitLog waits until a process has said all of some words in one line.
func (s *scene) awaitLog(p *process.Process, words ...string) {
	s.Helper()
	s.await(fmt.Sprintf("a line of %s with %q", p.Name, words), "true", func() string {
		for line := range strings.Lines(p.Log()) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return "true"
			}
		}
		return "false; it said:\n" + p.Tail(10)
	})
}

// expectNoRules fails the test if there is a table of rules on a node.
func (s *scene) expectNoRules(n *testbed.Node) {
	s.Helper()
	err := n.Host.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		if err != nil {
			return err
		}
		for _, t := range tables {
			err = errors.Join(err, fmt.Errorf("there is a table %s", t.Name))
		}
		return err
	})
	if err != nil {
		s.Errorf("rules of %s: %v", n.Name, err)
	}
}

// resources are what a proxy reads.
var resources = [...]string{"services", "endpointslices", "nodes", "servicecidrs"}

// TestRoleMissing runs a proxy whose user may nothing. It says what it lacks,
// changes nothing, and goes to work when it is given the role.
func TestRoleMissing(t *testing.T) {
	s := newBareScene(t)
	node := bed.Nodes[0]
	svc := s.service("web")
	s.publish(svc, ready(s.pod(node, "web"))...)
	const user = "sluice:nobody"
	files, err := bed.NewUser(pki.Identity{Name: user})
	if err != nil {
		t.Fatal(err)
	}
	p := s.startProxy(node, testbed.Proxy{User: files})
	for _, r := range resources {
		s.awaitLog(p, "forbidden", r)
	}
	s.expectNoRules(node)

	bindings := bed.Client.RbacV1().ClusterRoleBindings()
	_, err = bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("bind the role: %v", err)
	}
	for _, to := range clusterIPs(svc) {
		s.expect(probe{s.clients[0], to, "web"})
	}
}

// TestStranger runs a proxy with a certificate that the API server's authority
// has not signed.
func TestStranger(t *testing.T) {
	s := newBareScene(t)
	node := bed.Nodes[0]
	files, err := bed.NewUser(testbed.ProxyIdentity(node))
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewAuthority("another authority")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := other.Issue(testbed.ProxyIdentity(node))
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Replace(pair); err != nil {
		t.Fatal(err)
	}
	p := s.startProxy(node, testbed.Proxy{User: files})
	s.awaitLog(p, "services", "unauthorized")
	s.expectNoRules(node)
}

// TestNodeAbsent runs a proxy for a Node that is not there yet. NodePorts are
// open on the addresses of the Node, so there are none before it comes.
func TestNodeAbsent(t *testing.T) {
	s := newBareScene(t)
	node := bed.Nodes[0]
	svc := s.service("web", func(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeNodePort })
	s.publish(svc, ready(s.pod(node, "web"))...)
	const name = "late-node"
	p := s.startProxy(node, testbed.Proxy{As: name})
	for _, to := range clusterIPs(svc) {
		s.expect(probe{s.clients[0], to, "web"})
	}
	for _, to := range nodePorts(node, svc) {
		s.expectBy(proxy.TCP, probe{outside(node), to, "reset"})
	}
	if err := p.Ended(); err != nil {
		t.Fatal(err)
	}
	if err := bed.RegisterAs(t.Context(), node, name); err != nil {
		t.Fatal(err)
	}
	for _, to := range nodePorts(node, svc) {
		s.expect(probe{outside(node), to, "web"})
	}
	if err := bed.Client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete the Node: %v", err)
	}
}

// TestCertificateRenewed replaces a proxy's certificate while it runs. When the
// connection is made anew after the first certificate has expired, only the
// second can have been shown.
func TestCertificateRenewed(t *testing.T) {
	s := newBareScene(t)
	node := bed.Nodes[0]
	gate := s.gate()
	brief := testbed.ProxyIdentity(node)
	brief.Life = 3 * time.Second
	expiry := time.NewTimer(brief.Life + time.Second)
	defer expiry.Stop()
	files, err := bed.NewUserAt(brief, gate.At)
	if err != nil {
		t.Fatal(err)
	}
	pods := s.pods("web")
	svc := s.service("web")
	s.publish(svc, ready(pods[0])...)
	s.startProxy(node, testbed.Proxy{User: files})
	s.expect(probe{s.clients[0], clusterIPs(svc)[0], "web-1"})

	pair, err := bed.Authority.Issue(testbed.ProxyIdentity(node))
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Replace(pair); err != nil {
		t.Fatal(err)
	}
	<-expiry.C
	gate.Shut()
	if err := gate.Open(); err != nil {
		t.Fatal(err)
	}
	s.publish(svc, ready(pods[1])...)
	s.expect(probe{s.clients[0], clusterIPs(svc)[0], "web-2"})
}

// gate opens a way to the API server that the test can shut.
func (s *scene) gate() *testbed.Gate {
	s.Helper()
	g, err := bed.NewGate(controlplane.Port + 1000)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(g.Shut)
	return g
}
