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
	Addrs   []netip.Addr // one of each family, as its Node object has them
	Host    *lab.Host
	Outside *lab.Host // what lies behind its default route
	Pins    string    // where mode ebpf keeps its programs; empty: there is no place for them

	plan plan
	lab  *lab.Lab
	pods int // made so far
}

func newNode(n int, cgroup string) (*Node, error) {
	p := planOf(n)
	l, err := lab.New(lab.Config{NodeAddrs: p.node, BridgeAddrs: p.bridge, Cgroup: cgroup})
	if err != nil {
		return nil, err
	}
	return &Node{
		Name: p.name, Addrs: p.node,
		Host: l.Node(), Outside: l.Outside(), plan: p, lab: l,
	}, nil
}

func (n *Node) close() error { return n.lab.Close() }

// Register creates the Node object of a node, as its kubelet would.
func (c *Cluster) Register(ctx context.Context, n *Node) error {
	return c.RegisterAs(ctx, n, n.Name)
}

// RegisterAs is Register by another name.
func (c *Cluster) RegisterAs(ctx context.Context, n *Node, name string) error {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
	}
	for _, p := range n.plan.pods {
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

// Pod is a pod of a node. It answers on every port it was told to, with its
// own address and the client's.
type Pod struct {
	Name  string
	Node  *Node
	Addrs []netip.Addr // one of each family
	Host  *lab.Host

	listeners []*traffic.Listener
}

// Port is where a pod answers.
type Port struct {
	Protocol proxy.Protocol
	Number   uint16
}

// AddPod starts a pod.
func (n *Node) AddPod(name string, ports ...Port) (_ *Pod, err error) {
	n.pods++
	p := &Pod{Name: name, Node: n}
	for _, bridge := range n.plan.bridge {
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

// ignoreRedirects keeps the node between two of its pods. They share a link, so
// the kernel advises them by ICMPv6 to do without the node, and with it without
// the translation of addresses back.
func ignoreRedirects(h *lab.Host) error {
	return h.Do(func() error {
		const path = "/proc/sys/net/ipv6/conf/eth0/accept_redirects"
		if err := os.WriteFile(path, []byte("0"), 0); err != nil {
			return fmt.Errorf("ignore redirects in %s: %w", h.Name, err)
		}
		return nil
	})
}

// StopAnswering closes the pod's ports, as its processes do when they end.
func (p *Pod) StopAnswering() error {
	var errs []error
	for _, l := range p.listeners {
		errs = append(errs, l.Close())
	}
	p.listeners = nil
	return errors.Join(errs...)
}

// Remove stops the pod and takes its addresses away.
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
