//go:build linux

package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
	"sluice/internal/source/manifest"
)

// catalog is what a folder of manifests says, as far as clients and pods are
// concerned.
type catalog struct {
	node     string
	nodeIPs  []netip.Addr
	services []service
	pods     []pod // every endpoint's, sorted by address
}

// service is one Service and where requests to it should go.
type service struct {
	name      string
	kind      v1.ServiceType
	addr      netip.AddrPort // its outermost address: load balancer, node port or cluster IP
	local     bool           // from outside only pods of this node are reached, and see the client
	clients   []proxy.Origin // who sends requests
	endpoints []netip.AddrPort
}

// pod is a place where requests arrive.
type pod struct {
	addr  netip.Addr
	here  bool // on the daemon's node
	ports []uint16
}

// readCatalog reads a folder. The demo wants manifests without problems.
func readCatalog(dir string) (catalog, error) {
	objects, problems, err := manifest.Load(dir)
	if err != nil {
		return catalog{}, err
	}
	for _, p := range problems {
		if !p.Note {
			return catalog{}, fmt.Errorf("read manifests: %v", p)
		}
	}
	if n := len(objects.Nodes); n != 1 {
		return catalog{}, fmt.Errorf("read manifests: %d Nodes, the demo needs one", n)
	}
	node := objects.Nodes[0]
	c := catalog{node: node.Name}
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == v1.NodeInternalIP {
			c.nodeIPs = append(c.nodeIPs, ip)
		}
	}
	if len(c.nodeIPs) == 0 {
		return catalog{}, fmt.Errorf("read manifests: Node %s has no InternalIP", node.Name)
	}
	for _, svc := range objects.Services {
		s, err := c.readService(svc, objects.EndpointSlices)
		if err != nil {
			return catalog{}, fmt.Errorf("read manifests: Service %s: %w", svc.Name, err)
		}
		c.services = append(c.services, s)
	}
	slices.SortFunc(c.services, compareServices)
	slices.SortFunc(c.pods, func(a, b pod) int { return a.addr.Compare(b.addr) })
	return c, nil
}

// compareServices orders Services as a viewer meets them: from the inside out,
// those without endpoints last.
func compareServices(a, b service) int {
	order := []v1.ServiceType{v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer}
	return cmp.Or(
		cmp.Compare(min(len(b.endpoints), 1), min(len(a.endpoints), 1)),
		cmp.Compare(slices.Index(order, a.kind), slices.Index(order, b.kind)),
		cmp.Compare(a.name, b.name),
	)
}

func (c *catalog) readService(svc *v1.Service, all []*discoveryv1.EndpointSlice) (service, error) {
	s := service{name: svc.Name, kind: cmp.Or(svc.Spec.Type, v1.ServiceTypeClusterIP)}
	port := svc.Spec.Ports[0]
	if port.Protocol != "" && port.Protocol != v1.ProtocolTCP {
		return service{}, fmt.Errorf("protocol %s: the demo sends TCP", port.Protocol)
	}
	ip, number := svc.Spec.ClusterIP, port.Port
	switch ingress := svc.Status.LoadBalancer.Ingress; {
	case len(ingress) > 0:
		ip = ingress[0].IP
		s.local = svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
		s.clients = []proxy.Origin{proxy.Elsewhere}
	case port.NodePort != 0:
		ip, number = c.nodeIPs[0].String(), port.NodePort
		s.clients = []proxy.Origin{proxy.OurPod, proxy.ThisNode, proxy.Elsewhere}
	default:
		s.clients = []proxy.Origin{proxy.OurPod, proxy.ThisNode}
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return service{}, fmt.Errorf("read its address: %w", err)
	}
	s.addr = netip.AddrPortFrom(addr, uint16(number))
	for _, slice := range all {
		if slice.Namespace == svc.Namespace && slice.Labels[discoveryv1.LabelServiceName] == svc.Name {
			if err := c.readSlice(&s, port.Name, slice); err != nil {
				return service{}, err
			}
		}
	}
	slices.SortFunc(s.endpoints, netip.AddrPort.Compare)
	return s, nil
}

// readSlice adds the endpoints of a slice to a Service and to the pods.
func (c *catalog) readSlice(s *service, port string, slice *discoveryv1.EndpointSlice) error {
	for _, p := range slice.Ports {
		if p.Port == nil || p.Name == nil || *p.Name != port {
			continue
		}
		for _, e := range slice.Endpoints {
			addr, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				return fmt.Errorf("read an endpoint of %s: %w", slice.Name, err)
			}
			here := e.NodeName != nil && *e.NodeName == c.node
			c.addPod(pod{addr: addr, here: here, ports: []uint16{uint16(*p.Port)}})
			// Of Services with the policy Local only the outside is a client.
			if here || !s.local {
				s.endpoints = append(s.endpoints, netip.AddrPortFrom(addr, uint16(*p.Port)))
			}
		}
	}
	return nil
}

// addPod adds a pod, or ports to one that is known.
func (c *catalog) addPod(p pod) {
	i := slices.IndexFunc(c.pods, func(x pod) bool { return x.addr == p.addr })
	if i < 0 {
		c.pods = append(c.pods, p)
		return
	}
	for _, port := range p.ports {
		if !slices.Contains(c.pods[i].ports, port) {
			c.pods[i].ports = append(c.pods[i].ports, port)
		}
	}
}

// ports returns every port that some pod listens on.
func (c *catalog) ports() []uint16 {
	var out []uint16
	for _, p := range c.pods {
		out = append(out, p.ports...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// localPods returns the pods on the daemon's node.
func (c *catalog) localPods() []pod {
	var out []pod
	for _, p := range c.pods {
		if p.here {
			out = append(out, p)
		}
	}
	return out
}
