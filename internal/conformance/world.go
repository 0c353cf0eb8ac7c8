package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// nodeName is the node that the proxy under test runs on. All cases share the addresses below and
// those of the lab.
const nodeName = "test-node"

// oracleMode is the mode whose behaviour the oracle describes.
const oracleMode = "nftables"

// The CIDRs of all pods, of this node's pods, and of Services.
var (
	clusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/64")}
	podCIDRs     = []string{"10.0.0.0/24", "fd00:10::/80"}
	serviceCIDRs = []string{"172.30.0.0/16", "fd00:172:30::/112"}
)

// detectors maps each value of Config.DetectLocal to the resolver's settings.
var detectors = map[string]resolve.Settings{
	"":             {LocalPods: proxy.LocalTrafficDetector{Sources: clusterCIDRs}},
	"cluster-cidr": {LocalPods: proxy.LocalTrafficDetector{Sources: clusterCIDRs}},
	"node-cidr":    {NodeCIDRs: true},
	"bridge":       {LocalPods: proxy.LocalTrafficDetector{Interface: lab.Bridge}},
	"prefix":       {LocalPods: proxy.LocalTrafficDetector{Interface: lab.Bridge[:2], IsPrefix: true}},
	"none":         {},
}

// settings returns the resolver's settings for a mode.
func (c Config) settings(mode string) (resolve.Settings, error) {
	s, known := detectors[c.DetectLocal]
	if !known {
		return s, fmt.Errorf("detect_local is %q", c.DetectLocal)
	}
	s.NodeName, s.MasqueradeAll = nodeName, c.MasqueradeAll
	s.LocalhostNodePorts = mode != "ipvs" && ptr.Deref(c.LocalhostNodePort, mode == "iptables")
	s.RefuseLoopback = c.RefuseLoopback && mode == "nftables"
	s.NodePortAddresses.Primary = mode == "nftables"
	for _, word := range c.NodePortAddresses {
		s.NodePortAddresses.Primary = word == "primary"
		if word == "primary" || word == "all" {
			continue
		}
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return s, fmt.Errorf("nodeport_addresses is %q, not primary, all or a list of CIDRs", word)
		}
		s.NodePortAddresses.CIDRs = append(s.NodePortAddresses.CIDRs, p)
		s.RelayLoopback = s.RelayLoopback || s.LocalhostNodePorts && p.Addr() == netip.IPv6Loopback()
	}
	var err, err2 error
	s.Allowed.ExternalIPs, err = parsePrefixes(c.ExternalIPs)
	s.Allowed.LoadBalancerIPs, err2 = parsePrefixes(c.LoadBalancerIPs)
	return s, errors.Join(err, err2)
}

func parsePrefixes(texts []string) (out []netip.Prefix, err error) {
	for _, text := range texts {
		p, bad := netip.ParsePrefix(text)
		out, err = append(out, p), errors.Join(err, bad)
	}
	return out, err
}

// node returns the Node object of this node.
func node(labels map[string]string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: labels}}
	n.Spec.PodCIDRs, n.Spec.PodCIDR = podCIDRs, podCIDRs[0]
	for _, a := range clients[FromNode].addrs {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	return n
}

// serviceCIDR returns the ServiceCIDR object of the world.
func (w *World) serviceCIDR() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "services"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: w.ServiceCIDRs()},
	}
}

// ServiceCIDRs returns the ranges that ClusterIPs are allocated from.
func (w *World) ServiceCIDRs() []string {
	if w.Config.ServiceCIDRs == nil {
		return serviceCIDRs
	}
	return w.Config.ServiceCIDRs
}

// InServiceCIDRs reports whether an address is in one of the Service CIDRs.
func (w *World) InServiceCIDRs(a netip.Addr) bool {
	return slices.ContainsFunc(w.ServiceCIDRs(), func(text string) bool { return netip.MustParsePrefix(text).Contains(a) })
}

// packet returns the first packet of a case as the node sees it.
func packet(c *Case) proxy.Packet {
	return proxy.Packet{
		Protocol: c.protocol(), Src: c.Src, Dst: c.to(), SrcLocal: c.isLocal(c.Src), DstLocal: c.isLocal(c.Dst),
		In: clients[c.From].link,
	}
}

// isLocal reports whether the address belongs to the node while the case runs. A packet that never
// leaves its pod is not seen by the node.
func (c *Case) isLocal(a netip.Addr) bool {
	return c.From != FromInside && slices.Contains(lab.Config{}.LocalAddrs(), a) || c.From == FromVIP && a == c.Src
}

// createdAt returns a creation time that many hours before the default one. Only cases about which
// Service is older use another value than 0.
func createdAt(hoursBefore int) metav1.Time {
	return metav1.NewTime(time.Unix(1700000000, 0).Add(-time.Duration(hoursBefore) * time.Hour).UTC())
}

// complete fills in the creation time of every Service and the address type of every slice, of the
// world and of its changes. It returns an error if the configuration is invalid.
func (w *World) complete(changes ...Phase) error {
	if _, err := w.Config.settings(oracleMode); err != nil {
		return err
	}
	for _, p := range append(changes, Phase{Services: w.Services, Slices: w.Slices}) {
		for _, s := range p.Services {
			if s.CreationTimestamp.IsZero() {
				s.CreationTimestamp = createdAt(0)
			}
		}
		for _, s := range p.Slices {
			if s.Name == "" {
				return errors.New("a slice without a name")
			}
			if s.AddressType == "" && len(s.Endpoints) > 0 {
				s.AddressType = discoveryv1.AddressTypeIPv4
				if strings.Contains(s.Endpoints[0].Addresses[0], ":") {
					s.AddressType = discoveryv1.AddressTypeIPv6
				}
			}
		}
	}
	return nil
}

// endpointSlice returns a slice without endpoints for a Service, with its namespace and a name
// derived from its name.
func endpointSlice(of *v1.Service, f proxy.Family, port int32) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(f.String())}
	s.Namespace, s.Name = of.Namespace, strings.ToLower(fmt.Sprintf("%s-%v", of.Name, f))
	s.Labels = map[string]string{discoveryv1.LabelServiceName: of.Name}
	for _, p := range of.Spec.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port})
	}
	return s
}

func endpoint(addr, node string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: &node, Conditions: c}
}

// emptyResolver returns a resolver that knows only the node, without its labels.
func (w *World) emptyResolver(mode string) *resolve.Resolver {
	s, err := w.Config.settings(mode)
	if err != nil {
		panic(err) // complete has checked the configuration
	}
	r := resolve.New(s)
	r.UpdateNode(node(nil))
	r.Update()
	return r
}

// newResolver returns a resolver that received the whole world in one update.
func (w *World) newResolver(mode string) *resolve.Resolver {
	r := w.emptyResolver(mode)
	r.UpdateNode(node(w.NodeLabels))
	r.UpdateServiceCIDR(nil, w.serviceCIDR())
	for _, s := range w.Services {
		r.Services.Update(nil, s)
	}
	for _, s := range w.Slices {
		r.Endpoints.Update(s, false)
	}
	r.Update()
	return r
}

// after returns a copy of the world with a phase's changes applied.
func (w *World) after(p Phase) *World {
	next := *w
	if p.NodeLabels != nil {
		next.NodeLabels = p.NodeLabels
	}
	if p.ServiceCIDRs != nil {
		next.Config.ServiceCIDRs = p.ServiceCIDRs
	}
	next.Services = slices.DeleteFunc(slices.Clone(w.Services), func(s *v1.Service) bool {
		return p.DeleteServices.has(key(s))
	})
	next.Slices = slices.DeleteFunc(slices.Clone(w.Slices), func(s *discoveryv1.EndpointSlice) bool {
		return p.DeleteSlices.has(s.Name)
	})
	next.Services = replace(next.Services, p.Services)
	next.Slices = replace(next.Slices, p.Slices)
	return &next
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// replace replaces the objects in list that have the same key, and appends the others.
func replace[T metav1.Object](list, by []T) []T {
	for _, o := range by {
		i := slices.IndexFunc(list, func(x T) bool { return key(x) == key(o) })
		if i < 0 {
			list = append(list, o)
		} else {
			list[i] = o
		}
	}
	return list
}

// worlds returns the group's world in each of its phases, in order.
func (g *Group) worlds() []*World {
	var out []*World
	w := &g.World
	for _, p := range g.Phases {
		w = w.after(p)
		out = append(out, w)
	}
	return out
}

// failure is a case with a wrong result. An empty id means that the group or story could not be
// run.
type failure struct {
	id  string // of the case
	err error  // lab.ErrUntried if the case cannot run here
}

// checkOracle compares the oracle's answer with the table for every case of a group.
func (g *Group) checkOracle() []failure {
	var out []failure
	for i, w := range g.worlds() {
		state := w.newResolver(oracleMode).State()
		for _, c := range g.casesFor(oracleMode, g.Phases[i].Name) {
			if want, got := c.expected(oracleMode), oracleAnswer(state, c); !got.equal(want) {
				out = append(out, failure{c.ID, fmt.Errorf("oracle: %v\n\twant:   %v", got, want)})
			}
		}
	}
	return out
}

// oracleAnswer returns the oracle's answer to a case as the table would state it.
func oracleAnswer(s *proxy.State, c *Case) Expect { return answer(s, packet(c)) }

func answer(s *proxy.State, p proxy.Packet) Expect {
	o := s.Outcome(p)
	e := Expect{o.Verdict, map[netip.AddrPort]bool{}}
	for _, b := range o.Backends {
		e.To[b.Addr] = b.Masquerade
	}
	return e
}

// Served returns how many Services of the world a proxy serves.
func (w *World) Served() (n int) {
	for _, s := range w.Services {
		_, others := s.Labels["service.kubernetes.io/service-proxy-name"]
		_, headless := s.Labels[v1.IsHeadlessService]
		if !others && !headless && s.Spec.Type != v1.ServiceTypeExternalName && s.Spec.ClusterIP != v1.ClusterIPNone {
			n++
		}
	}
	return n
}
