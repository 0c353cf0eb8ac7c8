package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sluice/internal/conformance/lab"
	"sluice/test/cluster/controlplane"
	"sluice/test/cluster/pki"
)

// nodeCount is how many nodes there are: one for the client, one for the
// endpoint and one that is neither.
const nodeCount = 3

// proxyGroup is the group of the users that the proxies are. It has the role
// that clusters give to kube-proxy, and nothing more.
const (
	proxyGroup = "sluice:proxies"
	proxyRole  = "system:node-proxier"
)

// Settings says what to run.
type Settings struct {
	Etcd, APIServer string // programs
	Proxy           string // the program that the nodes run
	KubeProxy       string // the program that nodes run when they are told to
	Dir             string // for data, certificates and logs
}

// Cluster is a control plane and its nodes. Its methods are called by one
// goroutine at a time.
type Cluster struct {
	*controlplane.ControlPlane
	Client kubernetes.Interface // an administrator's
	Nodes  []*Node

	settings Settings
	hub      *lab.Lab
	proxies  int // started so far, to name their logs
}

// Start makes the network, starts the control plane and registers the nodes.
// No proxy runs yet.
func Start(ctx context.Context, s Settings) (_ *Cluster, err error) {
	c := &Cluster{settings: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.wire(); err != nil {
		return nil, fmt.Errorf("make the network: %w", err)
	}
	c.ControlPlane, err = controlplane.Start(ctx, controlplane.Settings{
		Etcd: s.Etcd, APIServer: s.APIServer, Dir: s.Dir,
		Host: c.Hub(), Addr: hubAddrs[0], ServiceCIDRs: serviceCIDRs,
	})
	if err != nil {
		return nil, fmt.Errorf("start the control plane: %w", err)
	}
	if c.Client, err = kubernetes.NewForConfig(c.Admin); err != nil {
		return nil, fmt.Errorf("make the administrator's client: %w", err)
	}
	if err := c.bindRole(ctx); err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		if err := c.Register(ctx, n); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Hub is the host of the control plane.
func (c *Cluster) Hub() *lab.Host { return c.hub.Node() }

// wire makes all hosts and connects them.
func (c *Cluster) wire() error {
	var err error
	if c.hub, err = lab.New(lab.Config{}); err != nil {
		return err
	}
	if err := wireHub(c.Hub()); err != nil {
		return err
	}
	for i := range nodeCount {
		n, err := newNode(i + 1)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
		if err := plugIn(c.Hub(), n.Host, n.plan); err != nil {
			return err
		}
	}
	for _, to := range c.Nodes {
		if err := routeTo(c.Hub(), to.plan); err != nil {
			return err
		}
		for _, from := range c.Nodes {
			if from == to {
				continue
			}
			if err := routeTo(from.Host, to.plan); err != nil {
				return err
			}
		}
	}
	return nil
}

// bindRole gives the proxies their role.
func (c *Cluster) bindRole(ctx context.Context) error {
	_, err := c.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: proxyGroup},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: proxyRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: proxyGroup}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("bind the role %s: %w", proxyRole, err)
	}
	return nil
}

// ProxyIdentity is the user of a node's proxy.
func ProxyIdentity(n *Node) pki.Identity {
	return pki.Identity{Name: "sluice:" + n.Name, Groups: []string{proxyGroup}}
}

// Close ends everything.
func (c *Cluster) Close() error {
	var errs []error
	if c.ControlPlane != nil {
		c.ControlPlane.Close()
	}
	for _, n := range c.Nodes {
		errs = append(errs, n.close())
	}
	if c.hub != nil {
		errs = append(errs, c.hub.Close())
	}
	return errors.Join(errs...)
}

// Remove deletes the data and logs of a closed cluster.
func (c *Cluster) Remove() error { return os.RemoveAll(c.settings.Dir) }
