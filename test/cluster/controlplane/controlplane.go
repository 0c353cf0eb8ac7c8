package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/test/cluster/apiserver"
	"sluice/test/cluster/pki"
	"sluice/test/cluster/process"
)

// Port is the port of the API server.
const Port = 6443

// Settings describe a control plane.
type Settings struct {
	Etcd, APIServer string // paths; empty means an API server in memory, without TLS and users
	Dir             string // for data, certificates and logs
	Host            *lab.Host
	Addr            netip.Addr     // of the host, for the API server
	ServiceCIDRs    []netip.Prefix // at most one of each family
	Flags           []string       // additional flags of the API server
}

// ControlPlane is a running etcd with an API server that can be stopped and started, or an API
// server in memory. Its methods must not be called concurrently.
type ControlPlane struct {
	Authority *pki.Authority
	Admin     *rest.Config // may do everything; works from any namespace

	settings   Settings
	memory     *memory // nil means a real etcd and API server
	etcd       *process.Process
	server     *process.Process // nil if the API server is down
	startCount int              // of both, for the names of their logs
}

// Start starts etcd and the API server and waits until the API server is ready.
func Start(ctx context.Context, s Settings) (_ *ControlPlane, err error) {
	c := &ControlPlane{settings: s}
	if s.APIServer == "" {
		c.memory = &memory{objects: apiserver.New(s.ServiceCIDRs)}
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if err := c.writeCertificates(); err != nil {
		return nil, err
	}
	if c.memory == nil {
		if err := c.StartEtcd(ctx); err != nil {
			return nil, err
		}
	}
	return c, c.StartAPIServer(ctx)
}

// Close kills both; nothing is kept.
func (c *ControlPlane) Close() {
	c.KillAPIServer()
	c.KillEtcd()
}

// url returns the URL of the API server at its own address, or at another address that leads to it.
func (c *ControlPlane) url(at netip.AddrPort) string {
	scheme := "https://"
	if c.memory != nil {
		scheme = "http://"
	}
	return scheme + at.String()
}

// addr returns the API server's own address.
func (c *ControlPlane) addr() netip.AddrPort { return netip.AddrPortFrom(c.settings.Addr, Port) }

// NewUser writes the files of a new user of the API server.
func (c *ControlPlane) NewUser(id pki.Identity) (pki.User, error) {
	return c.NewUserAt(id, c.addr())
}

// NewUserAt is NewUser for a user that connects to another address.
func (c *ControlPlane) NewUserAt(id pki.Identity, at netip.AddrPort) (pki.User, error) {
	pair, err := c.Authority.Issue(id)
	if err != nil {
		return pki.User{}, err
	}
	dir, err := os.MkdirTemp(c.settings.Dir, "user-")
	if err != nil {
		return pki.User{}, fmt.Errorf("create the directory of a user: %w", err)
	}
	return pki.NewUser(dir, c.url(at), c.Authority, pair)
}

func (c *ControlPlane) writeCertificates() error {
	var err error
	if c.Authority, err = pki.NewAuthority("test cluster"); err != nil {
		return err
	}
	service := c.settings.ServiceCIDRs[0].Addr().Next() // of the kubernetes Service
	serving, err := c.Authority.Issue(pki.Identity{
		Name: "kube-apiserver", Addrs: []netip.Addr{c.settings.Addr, service, netip.MustParseAddr("127.0.0.1")},
	})
	if err != nil {
		return err
	}
	// The API server requires a key for service accounts, even if there are none.
	accounts, err := c.Authority.Issue(pki.Identity{Name: "service-accounts"})
	if err != nil {
		return err
	}
	admin, err := c.Authority.Issue(pki.Identity{Name: "admin", Groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	c.Admin = &rest.Config{
		QPS:             -1, // no limit
		WarningHandler:  rest.NoWarnings{},
		Dial:            c.dial,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.Authority.Cert, CertData: admin.Cert, KeyData: admin.Key},
	}
	c.Admin.Host = c.url(c.addr())
	return errors.Join(
		os.WriteFile(c.path("ca.crt"), c.Authority.Cert, 0o600),
		serving.Write(c.settings.Dir, "server"),
		accounts.Write(c.settings.Dir, "accounts"),
	)
}

// dial connects from the host's namespace.
func (c *ControlPlane) dial(ctx context.Context, _, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return c.settings.Host.Dial(ctx, proxy.TCP, netip.Addr{}, to)
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.settings.Dir, name) }

// waitReady calls ready until it succeeds or the process has ended.
func waitReady(ctx context.Context, p *process.Process, ready func(context.Context) error) error {
	const patience = 90 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		err := ready(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if ended := p.Ended(); ended != nil {
			return ended
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait %v for %s: %w; its last lines:\n%s", patience, p.Name, err, p.Tail(20))
		case <-tick.C:
		}
	}
}
