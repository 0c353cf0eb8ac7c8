package testbed

import (
	"cmp"
	"fmt"
	"path/filepath"

	"sluice/test/cluster/pki"
	"sluice/test/cluster/process"
)

// The proxy modes. kube-proxy has no userspace and no ebpf.
const (
	NFTables  = "nftables"
	IPTables  = "iptables"
	IPVS      = "ipvs"
	Userspace = "userspace"
	EBPF      = "ebpf"
)

// Proxy describes how a node's proxy is run. The zero value is the default.
type Proxy struct {
	User      pki.User // default: a new user with the proxies' role
	As        string   // Node name; default: that of its node
	Program   string   // default: that of the cluster's settings
	Mode      string   // default: nftables
	Pods      string   // --cluster-cidr; default: ClusterCIDR
	KubeProxy bool     // Program is kube-proxy
	Env       []string // in addition to the test's own environment
	Args      []string // more flags
}

// withDefaults fills in all defaults except the user.
func (p Proxy) withDefaults(n *Node, s Settings) Proxy {
	p.As = cmp.Or(p.As, n.Name)
	if p.KubeProxy {
		p.Program = cmp.Or(p.Program, s.KubeProxy)
	}
	p.Program = cmp.Or(p.Program, s.Proxy)
	p.Mode = cmp.Or(p.Mode, NFTables)
	p.Pods = cmp.Or(p.Pods, ClusterCIDR)
	return p
}

// StartProxy starts the proxy of a node. Its rules remain when it stops; the node's next proxy
// takes them over.
func (c *Cluster) StartProxy(n *Node, p Proxy) (*process.Process, error) {
	if p.User.Dir == "" {
		var err error
		if p.User, err = c.NewUser(ProxyIdentity(n)); err != nil {
			return nil, err
		}
	}
	p = p.withDefaults(n, c.settings)
	spec := process.Spec{
		Path: p.Program,
		Args: []string{
			"--kubeconfig=" + p.User.Kubeconfig(),
			"--hostname-override=" + p.As,
			"--cluster-cidr=" + p.Pods,
			"--proxy-mode=" + p.Mode,
		},
		Env: p.Env, NoSignalHandler: p.KubeProxy,
	}
	if p.KubeProxy {
		// The limit belongs to the machine and cannot be set from a namespace; kube-proxy would
		// exit.
		spec.Args = append(spec.Args, "--conntrack-max-per-core=0")
	} else {
		spec.Args = append(spec.Args, "--status-socket="+c.StatusSocket(n))
		spec.Args = append(spec.Args, n.ebpfFlags()...)
	}
	spec.Args = append(spec.Args, p.Args...)
	return c.start(n, "proxy", spec)
}

// StatusSocket returns the path of the status socket of our daemon on a node.
func (c *Cluster) StatusSocket(n *Node) string { return filepath.Join(c.settings.Dir, n.Name+".sock") }

// WaitInForce waits until everything that our daemon on a node knows is in force.
func (c *Cluster) WaitInForce(n *Node) error {
	p, err := c.StartProgram(n, "status", c.settings.Proxy, "status", "--wait=60s", "--socket="+c.StatusSocket(n))
	if err != nil {
		return err
	}
	return p.Wait()
}

// ebpfFlags returns the flags for the cgroup and the BPF file system of mode ebpf. Other modes need
// them to clean up.
func (n *Node) ebpfFlags() []string {
	if n.Pins == "" {
		return nil
	}
	return []string{"--cgroup-root=" + n.Host.Cgroup, "--bpf-root=" + n.Pins}
}

// StartProgram starts a program on a node, with arguments.
func (c *Cluster) StartProgram(n *Node, name, path string, args ...string) (*process.Process, error) {
	return c.start(n, name, process.Spec{Path: path, Args: args})
}

// start starts a process with its own log.
func (c *Cluster) start(n *Node, name string, s process.Spec) (*process.Process, error) {
	c.started++
	s.Name, s.Dir = fmt.Sprintf("%s-%s-%d", n.Name, name, c.started), c.settings.Dir
	return process.Start(n.Host, s)
}

// CleanUp removes the rules that proxies have left on a node.
func (c *Cluster) CleanUp(n *Node) error {
	p, err := c.StartProgram(n, "cleanup", c.settings.Proxy, append(n.ebpfFlags(), "--cleanup")...)
	if err != nil {
		return err
	}
	return p.Wait()
}

// Sluice returns the path of our daemon.
func (c *Cluster) Sluice() string { return c.settings.Proxy }

// KubeProxy returns the path of the real kube-proxy.
func (c *Cluster) KubeProxy() string { return c.settings.KubeProxy }
