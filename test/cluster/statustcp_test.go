package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
	"sluice/test/cluster/pki"
	"sluice/test/cluster/testbed"
)

// token makes a service account and returns a token of it.
func (s *scene) token(account string) string {
	s.Helper()
	accounts := bed.Client.CoreV1().ServiceAccounts(s.namespace)
	made := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	if _, err := accounts.Create(s.Context(), made, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := accounts.Delete(context.Background(), account, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	t, err := accounts.CreateToken(s.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return t.Status.Token
}

// bind gives a role to somebody until the test ends.
func (s *scene) bind(role string, to rbacv1.Subject) {
	s.Helper()
	bindings := bed.Client.RbacV1().ClusterRoleBindings()
	name := s.namespace + ":" + role
	_, err := bindings.Create(s.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: []rbacv1.Subject{to},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatalf("bind %s: %v", role, err)
	}
	s.Cleanup(func() {
		if err := bindings.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
}

// readerRole makes the role that we deploy, and returns its name.
func (s *scene) readerRole() string {
	s.Helper()
	text, err := os.ReadFile("../../deploy/kustomize/components/status/clusterrole.yaml")
	if err != nil {
		s.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(text, &role); err != nil {
		s.Fatal(err)
	}
	roles := bed.Client.RbacV1().ClusterRoles()
	if _, err := roles.Create(s.Context(), &role, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := roles.Delete(context.Background(), role.Name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	return role.Name
}

// statusClient asks a daemon over TCP, with TLS.
type statusClient struct {
	from *lab.Host
	at   netip.AddrPort
}

// ask returns the code and the body of an answer, and the certificate that was shown.
func (c statusClient) ask(token, path string) (string, *x509.Certificate) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bed.Authority.Cert)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.from.Dial(ctx, proxy.TCP, netip.Addr{}, c.at)
		},
	}}
	r, err := http.NewRequest(http.MethodGet, "https://"+c.at.String()+path, nil)
	if err != nil {
		return err.Error(), nil
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(r)
	if err != nil {
		return err.Error(), nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", cmp.Or(strings.TrimSpace(string(body)), fmt.Sprint(err))), resp.TLS.PeerCertificates[0]
}

// TestStatusOverTCP reads a daemon's status from another host, with tokens that
// the real API server knows: whoever has no right to gets nothing, also while
// nobody can say who has.
func TestStatusOverTCP(t *testing.T) {
	s := newBareScene(t)
	node := bed.Nodes[0]
	dir := t.TempDir()
	replace := func() {
		t.Helper()
		pair, err := bed.Authority.Issue(pki.Identity{Name: "status", Addrs: node.Addrs})
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Write(dir, "tls"); err != nil {
			t.Fatal(err)
		}
	}
	replace()
	gate := s.gate()
	identity := testbed.ProxyIdentity(node)
	files, err := bed.NewUserAt(identity, gate.At)
	if err != nil {
		t.Fatal(err)
	}
	other := statusClient{bed.Nodes[1].Host, netip.AddrPortFrom(node.Addrs[0], 10246)}
	s.startProxy(node, testbed.Proxy{User: files, Args: []string{
		"--status-bind-address=" + other.at.String(), "--status-tls-cert-file=" + dir + "/tls.crt", "--status-tls-private-key-file=" + dir + "/tls.key",
	}})
	expect := func(c statusClient, token, path, want string) {
		t.Helper()
		s.await("answer to "+path, "so", func() string {
			got, _ := c.ask(token, path)
			if strings.Contains(got, want) {
				return "so"
			}
			return got
		})
	}
	reader, guest, late := s.token("reader"), s.token("guest"), s.token("late")
	expect(other, "", statusapi.NodePath, `401 {"error":"the request has no token`)
	expect(statusClient{node.Host, other.at}, "", statusapi.NodePath, `401 {"error":"the request has no token`)
	expect(other, guest, statusapi.NodePath, `503 {"error":"the API server does not let this daemon create tokenreviews: bind ClusterRole system:auth-delegator`)

	s.bind("system:auth-delegator", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: identity.Name})
	s.bind(s.readerRole(), rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: "reader"})
	expect(other, reader, statusapi.NodePath, `200 {"name":"`+node.Name+`"`)
	expect(other, reader, statusapi.ServicesPath, `200 {"items":[`)
	expect(other, reader, "/", `403 {"error":"user \"system:serviceaccount:`)
	expect(other, guest, statusapi.NodePath, `403 {"error":"user \"system:serviceaccount:`+s.namespace+`:guest\" may not get /v1/node`)
	expect(other, reader+"x", statusapi.NodePath, `401 {"error":"the API server does not accept this token`)

	_, before := other.ask(reader, statusapi.NodePath)
	replace()
	if _, after := other.ask(reader, statusapi.NodePath); before == nil || after == nil || before.Equal(after) {
		t.Error("the certificate is still the one of before")
	}
	gate.Shut()
	expect(other, late, statusapi.NodePath, `503 {"error":"the API server cannot review the request`)
}
