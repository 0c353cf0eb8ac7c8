package testbed

import (
	"cmp"
	"fmt"
	"path/filepath"

	"sluice/test/cluster/pki"
	"sluice/test/cluster/process"
)

// The proxy modes. Kube-proxy has no userspace and no ebpf.
const (
	NFTables  = "nftables"
	IPTables  = "iptables"
	IPVS      = "ipvs"
	Userspace = "userspace"
	EBPF      = "ebpf"
)

// Proxy says how a node's proxy is run. The zero value is the ordinary way.
type Proxy struct {
	User      pki.User // the zero value: a new user that has the role
	As        string   // the name of the Node it is; empty: that of its node
	Program   string   // empty: that of the cluster's settings
	Mode      string   // empty: nftables
	Pods      string   // where the pods of all nodes are; empty: ClusterCIDR
	KubeProxy bool     // it is the real kube-proxy
	Env       []string // what differs from the test's own environment
	Args      []string // more flags
}

// withDefaults fills in what is missing for the proxy of a node, but for its user.
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

// StartProxy starts the proxy of a node. Its rules stay when it stops; the next
// proxy of the node takes them over.
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
		// The limit is the machine's and cannot be set from a namespace, for
		// which kube-proxy would end.
		spec.Args = append(spec.Args, "--conntrack-max-per-core=0")
	} else {
		spec.Args = append(spec.Args, "--status-socket="+c.StatusSocket(n))
		spec.Args = append(spec.Args, n.sockets()...)
	}
	spec.Args = append(spec.Args, p.Args...)
	return c.start(n, "proxy", spec)
}

// StatusSocket returns where our daemon on a node answers.
func (c *Cluster) StatusSocket(n *Node) string { return filepath.Join(c.settings.Dir, n.Name+".sock") }

// InForce waits until everything that our daemon on a node knows is in force.
func (c *Cluster) InForce(n *Node) error {
	p, err := c.StartProgram(n, "status", c.settings.Proxy, "status", "--wait=60s", "--socket="+c.StatusSocket(n))
	if err != nil {
		return err
	}
	return p.Wait()
}

// sockets says which sockets mode ebpf acts on, and where it keeps its programs: also
// to other modes, which clean up.
func (n *Node) sockets() []string {
	if n.Pins == "" {
		return nil
	}
	return []string{"--cgroup-root=" + n.Host.Cgroup, "--bpf-root=" + n.Pins}
}

// StartProgram starts a program on a node, with arguments.
func (c *Cluster) StartProgram(n *Node, name, path string, args ...string) (*process.Process, error) {
	return c.start(n, name, process.Spec{Path: path, Args: args})
}

// start gives a process a log of its own and starts it.
func (c *Cluster) start(n *Node, name string, s process.Spec) (*process.Process, error) {
	c.started++
	s.Name, s.Dir = fmt.Sprintf("%s-%s-%d", n.Name, name, c.started), c.settings.Dir
	return process.Start(n.Host, s)
}

// CleanUp removes the rules that proxies have left on a node.
func (c *Cluster) CleanUp(n *Node) error {
	p, err := c.StartProgram(n, "cleanup", c.settings.Proxy, append(n.sockets(), "--cleanup")...)
	if err != nil {
		return err
	}
	return p.Wait()
}

// Sluice returns the program of our daemon.
func (c *Cluster) Sluice() string { return c.settings.Proxy }

// KubeProxy returns the program of the real kube-proxy.
func (c *Cluster) KubeProxy() string { return c.settings.KubeProxy }

// Daemon returns the program that nodes run.
func (c *Cluster) Daemon() string { return c.settings.Proxy }
