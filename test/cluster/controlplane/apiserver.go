package controlplane

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/client-go/kubernetes"

	"sluice/test/cluster/process"
)

// StartAPIServer starts the API server and waits until it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	if c.memory != nil {
		return c.memory.start(c.settings)
	}
	c.startCount++
	var err error
	c.server, err = process.Start(c.settings.Host, process.Spec{
		Name: fmt.Sprintf("kube-apiserver-%d", c.startCount), Dir: c.settings.Dir, Path: c.settings.APIServer,
		Args: c.apiServerArgs(),
	})
	if err != nil {
		return err
	}
	return c.AwaitAPIServer(ctx)
}

// AwaitAPIServer waits until the API server is ready, which requires etcd.
func (c *ControlPlane) AwaitAPIServer(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		return fmt.Errorf("create the administrator's client: %w", err)
	}
	return waitReady(ctx, c.server, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func (c *ControlPlane) apiServerArgs() []string {
	var cidrs []string
	for _, p := range c.settings.ServiceCIDRs {
		cidrs = append(cidrs, p.String())
	}
	return append(c.settings.Flags,
		"--etcd-servers="+etcdURL,
		"--bind-address="+c.settings.Addr.String(),
		"--advertise-address="+c.settings.Addr.String(),
		fmt.Sprintf("--secure-port=%d", Port),
		"--tls-cert-file="+c.path("server.crt"), "--tls-private-key-file="+c.path("server.key"),
		"--client-ca-file="+c.path("ca.crt"),
		"--authorization-mode=RBAC",
		"--service-account-issuer="+c.url(c.addr()),
		"--service-account-key-file="+c.path("accounts.crt"),
		"--service-account-signing-key-file="+c.path("accounts.key"),
		"--service-cluster-ip-range="+strings.Join(cidrs, ","),
		"--profiling=false",
	)
}

// KillAPIServer kills the API server, as in a crash. The objects remain.
func (c *ControlPlane) KillAPIServer() {
	if c.memory != nil {
		c.memory.kill()
	}
	if c.server != nil {
		c.server.Kill()
		c.server = nil
	}
}
