package pki

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// User is a folder with what a user shows to the API server: a kubeconfig and
// the files that it names.
type User struct{ Dir string }

// NewUser writes the files of a user of the API server at this URL.
func NewUser(dir, server string, a *Authority, p Pair) (User, error) {
	u := User{Dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return u, fmt.Errorf("make the folder of a user: %w", err)
	}
	if err := os.WriteFile(u.path("ca.crt"), a.Cert, 0o600); err != nil {
		return u, fmt.Errorf("write the authority's certificate: %w", err)
	}
	if err := u.Replace(p); err != nil {
		return u, err
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["test"] = &clientcmdapi.Cluster{Server: server, CertificateAuthority: u.path("ca.crt")}
	c.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		ClientCertificate: u.path("client.crt"), ClientKey: u.path("client.key"),
	}
	c.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "user"}
	c.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*c, u.Kubeconfig()); err != nil {
		return u, fmt.Errorf("write kubeconfig: %w", err)
	}
	return u, nil
}

// Kubeconfig is the path of the kubeconfig file.
func (u User) Kubeconfig() string { return u.path("kubeconfig") }

// Replace gives the user another certificate. The kubeconfig stays as it is.
func (u User) Replace(p Pair) error { return p.Write(u.Dir, "client") }

func (u User) path(name string) string { return filepath.Join(u.Dir, name) }
