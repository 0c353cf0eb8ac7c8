package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/test/cluster/podexec"
)

// Node is one node of the cluster.
type Node struct {
	Name    string
	Addrs   []netip.Addr // one of each family, the InternalIPs of its Node object
	Host    *lab.Host
	Outside *lab.Host // host behind its default route
	Pins    string    // --bpf-root of mode ebpf; empty without Settings.Sockets

	addrPlan addresses
	lab      *lab.Lab
	pods     int // created so far
}

func newNode(n int, cgroup string) (*Node, error) {
	p := addressesOf(n)
	l, err := lab.New(lab.Config{NodeAddrs: p.node, BridgeAddrs: p.bridge, Cgroup: cgroup})
	if err != nil {
		return nil, err
	}
	return &Node{
		Name: p.name, Addrs: p.node,
		Host: l.Node(), Outside: l.Outside(), addrPlan: p, lab: l,
	}, nil
}

func (n *Node) close() error { return n.lab.Close() }

// Register creates the Node object of a node, as its kubelet would.
func (c *Cluster) Register(ctx context.Context, n *Node) error {
	return c.RegisterAs(ctx, n, n.Name)
}

// RegisterAs is Register with another name.
func (c *Cluster) RegisterAs(ctx context.Context, n *Node, name string) error {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
	}
	for _, p := range n.addrPlan.pods {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, p.String())
	}
	node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	made, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Node %s: %w", name, err)
	}
	for _, a := range n.Addrs {
		made.Status.Addresses = append(made.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a.String()})
	}
	made.Status.DaemonEndpoints.KubeletEndpoint.Port = podexec.Port
	if _, err := c.Client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("set the addresses of Node %s: %w", name, err)
	}
	return nil
}

// Pod is a pod of a node. It answers on its ports with its own address and the client's.
type Pod struct {
	Name  string
	Node  *Node
	Addrs []netip.Addr // one of each family
	Host  *lab.Host

	listeners []*traffic.Listener
}

// Port is a port that a pod answers on.
type Port struct {
	Protocol proxy.Protocol
	Number   uint16
}

// AddPod starts a pod.
func (n *Node) AddPod(name string, ports ...Port) (_ *Pod, err error) {
	n.pods++
	p := &Pod{Name: name, Node: n}
	for _, bridge := range n.addrPlan.bridge {
		p.Addrs = append(p.Addrs, offset(bridge, n.pods))
	}
	if p.Host, err = n.lab.AddPod(name, p.Addrs...); err != nil {
		return nil, err
	}
	if err := ignoreRedirects(p.Host); err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	for _, a := range p.Addrs {
		if err := p.listen(a, ports...); err != nil {
			return nil, errors.Join(err, p.Remove())
		}
	}
	return p, nil
}

// listen answers on ports of an address.
func (p *Pod) listen(a netip.Addr, ports ...Port) error {
	for _, port := range ports {
		l, err := p.Host.Listen(port.Protocol, netip.AddrPortFrom(a, port.Number))
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, l)
	}
	return nil
}

// ignoreRedirects keeps traffic between two pods of a node on the path through the node. They share
// a link, so the kernel would send ICMPv6 redirects, and replies would bypass the reverse address
// translation.
func ignoreRedirects(h *lab.Host) error {
	return h.Do(func() error {
		const path = "/proc/sys/net/ipv6/conf/eth0/accept_redirects"
		if err := os.WriteFile(path, []byte("0"), 0); err != nil {
			return fmt.Errorf("ignore redirects in %s: %w", h.Name, err)
		}
		return nil
	})
}

// StopAnswering closes the pod's ports, as when its processes end.
func (p *Pod) StopAnswering() error {
	var errs []error
	for _, l := range p.listeners {
		errs = append(errs, l.Close())
	}
	p.listeners = nil
	return errors.Join(errs...)
}

// Remove stops the pod and removes its addresses.
func (p *Pod) Remove() error {
	return errors.Join(p.StopAnswering(), p.Node.lab.RemovePod(p.Host))
}

// offset returns the address that is n after another.
func offset(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] += byte(n)
	out, _ := netip.AddrFromSlice(b)
	return out
}
