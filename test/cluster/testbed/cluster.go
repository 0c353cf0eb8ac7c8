package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/test/cluster/controlplane"
	"sluice/test/cluster/pki"
)

// nodeCount is the number of nodes: one for the client, one for the endpoint and one that is
// neither.
const nodeCount = 3

// proxyGroup is the group of the proxies' users. It has the role that clusters give to kube-proxy,
// and nothing more.
const (
	proxyGroup = "sluice:proxies"
	proxyRole  = "system:node-proxier"
)

// Settings describe a cluster.
type Settings struct {
	Etcd, APIServer string // paths; empty means an API server in memory
	Proxy           string // path of our daemon
	KubeProxy       string // path of kube-proxy
	Dir             string // for data, certificates and logs
	APIServerFlags  []string
	Bare            bool // start without nodes; AddNode adds them
	Sockets         bool // each node has its own cgroup, for mode ebpf
}

// Cluster is a control plane and its nodes. Its methods must not be called concurrently.
type Cluster struct {
	*controlplane.ControlPlane
	Client kubernetes.Interface // an administrator's
	Nodes  []*Node

	Cgroups *traffic.Cgroups // nil without Settings.Sockets

	settings Settings
	hub      *lab.Lab
	bpf      string // mount point of a BPF file system
	started  int    // processes so far, for the names of their logs
	nodes    int    // created so far
}

// Start creates the network, starts the control plane and registers the nodes. It starts no
// proxies.
func Start(ctx context.Context, s Settings) (_ *Cluster, err error) {
	c := &Cluster{settings: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.buildNetwork(); err != nil {
		return nil, fmt.Errorf("create the network: %w", err)
	}
	c.ControlPlane, err = controlplane.Start(ctx, controlplane.Settings{
		Etcd: s.Etcd, APIServer: s.APIServer, Dir: s.Dir,
		Host: c.Hub(), Addr: hubAddrs[0], ServiceCIDRs: serviceCIDRs, Flags: s.APIServerFlags,
	})
	if err != nil {
		return nil, fmt.Errorf("start the control plane: %w", err)
	}
	if c.Client, err = kubernetes.NewForConfig(c.Admin); err != nil {
		return nil, fmt.Errorf("create the administrator's client: %w", err)
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

// Hub returns the host of the control plane.
func (c *Cluster) Hub() *lab.Host { return c.hub.Node() }

// buildNetwork creates all hosts and connects them.
func (c *Cluster) buildNetwork() error {
	var err error
	if c.settings.Sockets {
		if c.Cgroups, err = traffic.NewCgroups(); err != nil {
			return err
		}
		if c.bpf, err = c.Cgroups.MountBPF(); err != nil {
			return err
		}
	}
	if c.hub, err = lab.New(lab.Config{}); err != nil {
		return err
	}
	if err := addUnderlay(c.Hub()); err != nil {
		return err
	}
	if c.settings.Bare {
		return nil
	}
	for range nodeCount {
		if _, err := c.addHost(); err != nil {
			return err
		}
	}
	return nil
}

// addHost creates a node with routes to and from all others.
func (c *Cluster) addHost() (*Node, error) {
	var cgroup string
	var err error
	if c.Cgroups != nil {
		if cgroup, err = c.Cgroups.Add(); err != nil {
			return nil, err
		}
	}
	n, err := newNode(c.nodes+1, cgroup)
	if err != nil {
		return nil, err
	}
	if c.nodes++; cgroup != "" {
		n.Pins = filepath.Join(c.bpf, n.Name)
	}
	if err := connectToHub(c.Hub(), n.Host, n.addrPlan); err != nil {
		return nil, errors.Join(err, n.close())
	}
	c.Nodes = append(c.Nodes, n)
	if err := addRoutes(c.Hub(), n.addrPlan); err != nil {
		return nil, err
	}
	for _, other := range c.Nodes {
		if other == n {
			continue
		}
		if err := errors.Join(addRoutes(other.Host, n.addrPlan), addRoutes(n.Host, other.addrPlan)); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// AddNode creates and registers another node.
func (c *Cluster) AddNode(ctx context.Context) (*Node, error) {
	n, err := c.addHost()
	if err != nil {
		return nil, fmt.Errorf("add a node: %w", err)
	}
	return n, c.Register(ctx, n)
}

// RemoveNode removes a node and its kernel state. Everything that runs on it must have ended.
func (c *Cluster) RemoveNode(ctx context.Context, n *Node) error {
	c.Nodes = slices.DeleteFunc(c.Nodes, func(other *Node) bool { return other == n })
	err := c.Client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})
	if err := errors.Join(err, disconnectFromHub(c.Hub(), n.addrPlan), n.close()); err != nil {
		return fmt.Errorf("remove %s: %w", n.Name, err)
	}
	return nil
}

// bindRole binds the role to the proxies' group.
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

// ProxyIdentity returns the user of a node's proxy.
func ProxyIdentity(n *Node) pki.Identity {
	return pki.Identity{Name: "sluice:" + n.Name, Groups: []string{proxyGroup}}
}

// Close stops everything.
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
	if c.Cgroups != nil {
		errs = append(errs, c.Cgroups.Close())
	}
	return errors.Join(errs...)
}

// Remove deletes the data and logs of a closed cluster.
func (c *Cluster) Remove() error { return os.RemoveAll(c.settings.Dir) }
