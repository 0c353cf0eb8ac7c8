package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source/manifest"
)

// manifests is the folder of examples and a temporary folder with the edited copy that the daemon
// serves.
type manifests struct{ examples, dir string }

// edit is a change of all EndpointSlices, relative to the examples.
type edit struct {
	title  string
	remove []netip.Addr           // endpoints with these addresses
	add    []discoveryv1.Endpoint // to every slice
}

// watchedDir returns the folder that the daemon watches.
func (m manifests) watchedDir() string { return filepath.Join(m.dir, "manifests") }

// apply returns the contents of the examples, by file name, with edited EndpointSlices.
func (m manifests) apply(e edit) (map[string][]byte, error) {
	names, err := filepath.Glob(filepath.Join(m.examples, "*.yaml"))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		documents := bytes.Split(text, []byte("\n---\n"))
		for i, doc := range documents {
			var slice discoveryv1.EndpointSlice
			err := yaml.Unmarshal(doc, &slice)
			if err == nil && slice.Kind == "EndpointSlice" && len(e.remove)+len(e.add) > 0 {
				documents[i], err = yaml.Marshal(e.slice(&slice))
			}
			if err != nil {
				return nil, fmt.Errorf("edit manifest %s: %w", name, err)
			}
		}
		out[filepath.Base(name)] = bytes.Join(documents, []byte("\n---\n"))
	}
	return out, nil
}

func (e edit) slice(from *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s := from.DeepCopy()
	s.Endpoints = slices.DeleteFunc(s.Endpoints, func(ep discoveryv1.Endpoint) bool {
		return slices.ContainsFunc(e.remove, func(a netip.Addr) bool { return slices.Contains(ep.Addresses, a.String()) })
	})
	s.Endpoints = append(s.Endpoints, e.add...)
	return s
}

// write replaces the files that differ. It renames each into place, so that the daemon never reads
// half a file.
func (m manifests) write(files map[string][]byte) error {
	for name, text := range files {
		to, next := filepath.Join(m.watchedDir(), name), filepath.Join(m.dir, name)
		if served, err := os.ReadFile(to); err == nil && bytes.Equal(text, served) {
			continue
		}
		if err := os.WriteFile(next, text, 0o644); err != nil {
			return err
		}
		if err := os.Rename(next, to); err != nil {
			return err
		}
	}
	return nil
}

// The parts of the demo's network that are not in the manifests.
const (
	clusterCIDR = "10.244.0.0/16"
	bridgeAddr  = "10.244.0.1"
	outsideAddr = "203.0.113.9"
	addedAddr   = "10.244.1.14" // of the pod that a step adds, on another node
	otherNode   = "node-2"
	thisNode    = "node-1" // where the daemon runs
)

// expectations evaluates the manifests with the resolver and the oracle.
type expectations struct {
	resolver *resolve.Resolver
	slices   []*discoveryv1.EndpointSlice // of the examples, unedited
	local    []netip.Addr                 // pods on the daemon's node, in order
	clients  []client                     // a pod, the node, and one outside
}

// client is a source of requests.
type client struct {
	name string
	src  netip.Addr
	in   string // the node's interface that receives its packets; empty for the node itself
}

// readExpectations reads a folder of manifests, which must have no problems.
func readExpectations(dir string) (*expectations, error) {
	objects, problems, err := manifest.Load(dir)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(problems, func(p manifest.Problem) bool { return !p.Note }); i >= 0 {
		return nil, fmt.Errorf("read manifests: %v", problems[i])
	}
	e := &expectations{resolver: resolve.New(resolve.Settings{
		NodeName: thisNode, LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix(clusterCIDR)}},
	})}
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			e.resolver.UpdateNode(o)
		case *v1.Service:
			e.resolver.Services.Update(nil, o)
		case *discoveryv1.EndpointSlice:
			e.slices = append(e.slices, o)
		}
	}
	e.change(edit{})
	for k := range e.resolver.State().Rows {
		if k.Protocol != proxy.TCP {
			return nil, fmt.Errorf("read manifests: Service port %v: the demo sends only TCP", k)
		}
	}
	for a, endpoints := range e.pods() {
		if endpoints[0].Local {
			e.local = append(e.local, a)
		}
	}
	slices.SortFunc(e.local, netip.Addr.Compare)
	if len(e.node().IPs) == 0 || len(e.local) < 2 {
		return nil, fmt.Errorf("read manifests: Node %s has %d InternalIPs and %d pods, but the demo needs at least 1 and 2",
			e.node().Name, len(e.node().IPs), len(e.local))
	}
	e.clients = []client{
		{"pod", e.local[0], lab.Bridge},
		{"node", e.node().IPs[0], ""},
		{"outside", netip.MustParseAddr(outsideAddr), lab.Uplink},
	}
	return e, nil
}

// change applies an edit to the resolver.
func (e *expectations) change(by edit) {
	for _, s := range e.slices {
		e.resolver.Endpoints.Update(by.slice(s), false)
	}
	e.resolver.Update()
}

func (e *expectations) node() *proxy.Node { return e.resolver.State().Node }

// pods returns all endpoints by pod address.
func (e *expectations) pods() map[netip.Addr][]proxy.Endpoint {
	out := map[netip.Addr][]proxy.Endpoint{}
	for _, row := range e.resolver.State().Rows {
		for _, ep := range row.Cluster {
			out[ep.Addr.Addr()] = append(out[ep.Addr.Addr()], ep)
		}
	}
	return out
}

// target is a Service and the expected results of requests to it.
type target struct {
	name        string
	description string
	order       string                       // sort key
	addr        netip.AddrPort               // load balancer, NodePort or ClusterIP, the first that it has
	want        map[netip.Addr]proxy.Outcome // by client
	endpoints   []netip.AddrPort             // reachable by some client
}

var kindOrder = []proxy.Kind{proxy.ClusterIP, proxy.NodePort, proxy.LoadBalancer}

// targets returns all Services, ordered by kind of address; those without endpoints come last.
func (e *expectations) targets() []target {
	var out []target
	for _, row := range e.resolver.State().Rows {
		out = append(out, e.target(row.Key.Name, slices.MaxFunc(row.Frontends, func(a, b proxy.Frontend) int {
			return cmp.Compare(slices.Index(kindOrder, a.Kind), slices.Index(kindOrder, b.Kind))
		})))
	}
	slices.SortFunc(out, func(a, b target) int { return cmp.Compare(a.order, b.order) })
	return out
}

// target asks the oracle about requests from every client that uses this kind of frontend.
func (e *expectations) target(name string, f proxy.Frontend) target {
	t := target{name: name, addr: f.Addr, want: map[netip.Addr]proxy.Outcome{}}
	if f.Kind == proxy.NodePort {
		t.addr = netip.AddrPortFrom(e.node().IPs[0], f.Addr.Port())
	}
	var from []string
	kept := true
	for _, c := range e.clients {
		inside := c.in != lab.Uplink
		if f.Kind == proxy.ClusterIP && !inside || f.Kind == proxy.LoadBalancer && inside {
			continue
		}
		from = append(from, c.name)
		t.want[c.src] = e.resolver.State().Outcome(proxy.Packet{
			Protocol: proxy.TCP, Src: c.src, Dst: t.addr, In: c.in,
			SrcLocal: c.in == "", DstLocal: slices.Contains(e.node().IPs, t.addr.Addr()),
		})
		for _, b := range t.want[c.src].Backends {
			kept = kept && !b.Masquerade
			t.endpoints = append(t.endpoints, b.Addr)
		}
	}
	t.order = fmt.Sprint(len(t.endpoints) == 0, slices.Index(kindOrder, f.Kind), name)
	t.description = fmt.Sprintf("%v %v, from %s", f.Kind, t.addr, strings.Join(from, ", "))
	if kept && len(t.endpoints) > 0 {
		t.description += "; client address kept"
	}
	return t
}

// network is the lab with the node, the pods and the clients.
type network struct {
	lab      *lab.Lab
	hosts    map[netip.Addr]*lab.Host // by address of a pod or client
	flags    []string                 // of the daemon, for mode ebpf
	cleanups []func() error
}

// newNetwork creates the network, including the pod that is added later.
func newNetwork(e *expectations, mode string) (n *network, err error) {
	n = &network{}
	c := lab.Config{NodeAddrs: e.node().IPs, BridgeAddrs: []netip.Addr{netip.MustParseAddr(bridgeAddr)}}
	if mode == "ebpf" {
		c.Cgroup, err = n.addCgroup()
	}
	if err == nil {
		n.lab, err = lab.New(c)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create network namespaces (needs root with all capabilities, "+
			"and a kernel with namespaces, veth links, bridges and IPv6): %w", err), n.close())
	}
	n.cleanups = append(n.cleanups, n.lab.Close)
	n.hosts = map[netip.Addr]*lab.Host{e.clients[1].src: n.lab.Node(), e.clients[2].src: n.lab.Outside()}
	pods := e.pods()
	for _, ep := range pods[e.local[0]] {
		later := proxy.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr(addedAddr), ep.Addr.Port())}
		pods[later.Addr.Addr()] = append(pods[later.Addr.Addr()], later)
	}
	for a, endpoints := range pods {
		if err := n.addPod(a, endpoints); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

// addCgroup creates a cgroup for the sockets of the node and its pods.
func (n *network) addCgroup() (string, error) {
	c, err := traffic.NewCgroups()
	if err != nil {
		return "", err
	}
	n.cleanups = append(n.cleanups, c.Close)
	cgroup, err := c.Add()
	bpf, err2 := c.MountBPF()
	n.flags = []string{"--cgroup-root", cgroup, "--bpf-root", filepath.Join(bpf, "sluice")}
	return cgroup, errors.Join(err, err2)
}

// addPod adds a pod that answers for its endpoints until the end, so that requests to a removed
// endpoint are noticed.
func (n *network) addPod(a netip.Addr, endpoints []proxy.Endpoint) (err error) {
	if endpoints[0].Local {
		n.hosts[a], err = n.lab.AddPod(a.String(), a)
	} else {
		n.hosts[a], err = n.lab.AddRemotePod(otherNode, a)
	}
	if err != nil {
		return err
	}
	for _, ep := range endpoints {
		ln, err := n.hosts[a].Listen(proxy.TCP, ep.Addr)
		if err != nil {
			return err
		}
		n.cleanups = append(n.cleanups, ln.Close)
	}
	return nil
}

// close undoes everything in reverse order: an open socket would keep its namespace alive.
func (n *network) close() error {
	var errs []error
	for _, f := range slices.Backward(n.cleanups) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// request is one finished request.
type request struct {
	service string
	client  netip.Addr
	sent    time.Time // a lower bound
	done    time.Time // an upper bound
	seen    traffic.Seen
}

// send sends some requests of a client to each target, and waits for all.
func (n *network) send(ctx context.Context, c client, targets []target) ([]request, error) {
	var out []request
	var flows []traffic.Flow
	for _, t := range targets {
		if _, ok := t.want[c.src]; !ok {
			continue
		}
		for range 1 + 2/len(t.want) { // three or four per target, over all clients
			out = append(out, request{service: t.name, client: c.src})
			flows = append(flows, traffic.Flow{Protocol: proxy.TCP, Src: c.src, Dst: t.addr, Patience: timeout, Socket: traffic.Socket{Unbound: c.in != lab.Uplink}})
		}
	}
	sent := time.Now()
	seen, err := n.hosts[c.src].Probe(ctx, flows)
	if err != nil {
		return nil, fmt.Errorf("send requests from %s: %w", c.name, err)
	}
	done := time.Now()
	for i := range seen {
		out[i].sent, out[i].done, out[i].seen = sent, done, seen[i]
	}
	return out, nil
}
