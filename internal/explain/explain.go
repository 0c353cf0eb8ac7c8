package explain

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// World is the state that explanations are derived from.
type World struct {
	Resolver *resolve.Resolver
	Mode     string
	Local    func(netip.Addr) bool // reports whether an address is the node's; nil: the addresses of the Node object are
	Held     func(netip.Addr) bool // reports whether the node has an address only because the mode assigned it, for a Service; nil: never
	View     *engine.View          // what is in force; nil without a daemon
	Families []proxy.Family        // the families that are served; nil: both
	Unserved []Unserved            // nil: it is not known which Services this proxy does not serve
}

// Unserved is a Service that exists and that this proxy does not serve.
type Unserved struct {
	Name      types.NamespacedName
	Why       statusapi.Reason // Headless, ExternalName, NoPorts, FamilyNotServed or OtherProxy
	Detail    string           // the cause, for people
	Addresses []netip.Addr
}

// Answer is an explanation, with what is needed to compare it with the kernel.
type Answer struct {
	*statusapi.Explanation
	Packet proxy.Packet
	Row    *proxy.ServicePort // the row in force that the packet is for; nil if there is none
	list   proxy.Scope        // which of the row's lists the packet uses
}

// maxListed bounds each list in an answer: candidates, endpoints that are not used,
// differences from the kernel.
const maxListed = 256

// Explain answers a question. Its errors are for the user, and say what is wrong
// with the question. The cost is proportional to the endpoints of one Service; for
// an address that no Service has, to the number of rows; with a client, to the number
// of all endpoints.
func (w *World) Explain(q Question) (*Answer, error) {
	t, err := q.parse(w)
	if errors.As(err, new(*UnknownError)) && !w.synced() {
		return w.withoutService(t), nil
	}
	if err != nil {
		return nil, err
	}
	if !t.dst.IsValid() {
		return w.withoutAddress(t), nil
	}
	x := &explanation{world: w, target: t, in: q.In, out: &statusapi.Explanation{}}
	x.out.Kernel = statusapi.KernelCheck{State: statusapi.KernelNotChecked, Why: "the kernel was not read"}
	x.setPacket()
	x.decide()
	x.setService()
	x.setReason()
	x.setEndpoints()
	x.advise()
	x.out.Doubts = w.doubts()
	return &Answer{x.out, x.packet, x.now.Row, x.now.Route.Scope}, nil
}

// withoutAddress answers a question about a Service that has no address here.
func (w *World) withoutAddress(t target) *Answer {
	why, detail := statusapi.Headless, "it has no address yet; only an API server allocates one"
	if u, ok := w.unserved(t.service); ok {
		why, detail = u.Why, u.Detail
	} else if w.Unserved == nil {
		detail = "it has no ports, or no address of a family that this node serves"
	}
	e := &statusapi.Explanation{
		Packet:  statusapi.ExplainedPacket{Protocol: t.proto.String()},
		Service: &statusapi.ExplainedPort{Namespace: t.service.Namespace, Name: t.service.Name},
		Verdict: proxy.Untouched.String(),
		Reason:  why,
		Message: fmt.Sprintf("Service %v is not served here: %s.", t.service, detail),
		Kernel:  statusapi.KernelCheck{State: statusapi.KernelNotChecked, Why: "the kernel has nothing of this Service"},
		Try:     tryUnserved(why),
	}
	return &Answer{Explanation: e}
}

// labelOtherProxy assigns a Service to another proxy.
const labelOtherProxy = "service.kubernetes.io/service-proxy-name"

func (w *World) unserved(name types.NamespacedName) (Unserved, bool) {
	i := slices.IndexFunc(w.Unserved, func(u Unserved) bool { return u.Name == name })
	if i < 0 {
		return Unserved{}, false
	}
	return w.Unserved[i], true
}

// explanation builds the answer to one question.
type explanation struct {
	world  *World
	target target
	in     string
	packet proxy.Packet
	want   proxy.Outcome // by the wanted state
	now    proxy.Outcome // by the state in force
	port   *resolve.PortDescription
	owners map[proxy.PortKey]*proxy.ServicePort // the wanted rows that may decide about the packet
	out    *statusapi.Explanation
}

// setPacket sets the packet and its origin. Without a client, the node itself sends
// it.
func (x *explanation) setPacket() {
	t, node := x.target, x.world.Resolver.State().Node
	family := proxy.FamilyOf(t.dst.Addr())
	p := proxy.Packet{Protocol: t.proto, Src: t.from, Dst: t.dst, In: x.in, DstLocal: x.world.local(t.dst.Addr())}
	if x.world.Held != nil && x.world.Held(t.dst.Addr()) {
		p.DstLocal = false
	}
	if p.SrcLocal = x.world.local(p.Src); !p.Src.IsValid() {
		p.SrcLocal = true
		for _, ip := range node.IPs {
			if proxy.FamilyOf(ip) == family && x.world.local(ip) {
				p.Src = ip
			}
		}
		if t.dst.Addr().IsLoopback() {
			p.Src = t.dst.Addr() // The kernel sends to a loopback address from a loopback address.
		}
	}
	x.packet = p
	x.out.Packet = statusapi.ExplainedPacket{
		Protocol: t.proto.String(), To: t.dst.String(), Interface: x.in, ToNode: p.DstLocal,
		Origin: node.Origin(p).String(), Why: x.originReason(node),
	}
	if p.Src.IsValid() {
		x.out.Packet.From = p.Src.String()
	}
}

func (x *explanation) originReason(node *proxy.Node) string {
	d := node.LocalPods
	switch origin := node.Origin(x.packet); {
	case origin == proxy.OurPod && len(d.Sources) > 0:
		return fmt.Sprintf("its address is a pod's, within %s", prefixList(d.Sources))
	case origin == proxy.OurPod:
		return "it arrives on a pod's interface, " + x.in
	case origin == proxy.ThisNode && !x.target.from.IsValid():
		return "no client was named, so the node itself"
	case origin == proxy.ThisNode:
		return "its address is the node's"
	case d.Interface != "" && x.in == "":
		return "pods are recognized by the interface " + d.Interface + ", and no interface was given"
	case d.Interface != "":
		return "packets of pods arrive on " + d.Interface
	case len(d.Sources) > 0:
		return fmt.Sprintf("its address is neither the node's nor within %s, the pods'", prefixList(d.Sources))
	default:
		return "no way to recognize pods is configured"
	}
}

// local reports whether an address is the node's. It uses the Node object only if
// w.Local is nil: the object may be outdated, or another node's.
func (w *World) local(a netip.Addr) bool {
	switch {
	case !a.IsValid():
		return false
	case a.IsLoopback():
		return true
	case w.Local != nil:
		return w.Local(a)
	default:
		return slices.Contains(w.Resolver.State().Node.IPs, a)
	}
}

// decide asks the oracle about the wanted state and about the state in force. It
// passes only rows that may decide about the packet.
func (x *explanation) decide() {
	x.owners = x.findOwners(x.world.Resolver.State())
	x.want = x.outcome(x.owners)
	x.now = x.want
	if v := x.world.View; v != nil {
		inForce := maps.Clone(x.owners)
		for r := range v.DirtyRows() {
			delete(inForce, r.Key)
			if r.InForce != nil && x.concerns(r.InForce) {
				inForce[r.Key] = r.InForce
			}
		}
		x.now = x.outcome(inForce)
	}
}

// findOwners returns the rows that may decide about the packet. A row that has both
// the address and the port is found by one lookup. If there is none, every row with
// the address or the NodePort is returned, at the cost of a scan over all rows.
func (x *explanation) findOwners(s *proxy.State) map[proxy.PortKey]*proxy.ServicePort {
	rows := map[proxy.PortKey]*proxy.ServicePort{}
	dst := x.packet.Dst
	onNode := netip.AddrPortFrom(proxy.FamilyOf(dst.Addr()).Unspecified(), dst.Port())
	found := false
	for _, addr := range []netip.AddrPort{dst, onNode} {
		if who := x.world.Resolver.Claimants(addr, x.packet.Protocol); who != nil {
			rows[who[0].Key] = s.Rows[who[0].Key]
			found = found || addr == dst || x.packet.DstLocal
		}
	}
	if !found {
		for key, row := range s.Rows {
			if x.concerns(row) {
				rows[key] = row
			}
		}
	}
	return rows
}

// concerns reports whether a row has the destination's address on any port, or its
// port as a NodePort.
func (x *explanation) concerns(row *proxy.ServicePort) bool {
	dst := x.packet.Dst
	for i := range row.Frontends {
		if f := &row.Frontends[i]; f.Addr.Addr() == dst.Addr() || f.Kind == proxy.NodePort && f.Addr.Port() == dst.Port() {
			return true
		}
	}
	return false
}

// setService sets the Service that the packet is for: the one that the question
// names, or else that of the row that decides.
func (x *explanation) setService() {
	row := x.want.Row
	if row == nil {
		row = x.now.Row
	}
	switch {
	case x.target.port != nil:
		x.port, row = x.target.port, x.target.port.Row
	case row != nil:
		if p, found := x.world.Resolver.DescribePort(row.Key); found && p.Row == row {
			x.port = &p
		}
	default:
		return
	}
	k := row.Key
	x.out.Service = &statusapi.ExplainedPort{Namespace: k.Namespace, Name: k.Name, Family: k.Family.String()}
	if x.want.Reason == proxy.PortNotOfService {
		return // The row only stands for the Service, which has no such port.
	}
	x.out.Service.Port = k.Port
	if v := x.world.View; v != nil {
		x.out.Service.Status = new(StatusOf(v.Row(k)))
	}
	switch f := x.want.Frontend; {
	case x.target.port != nil:
		f := x.target.port.Frontends[0]
		x.out.Frontend = &statusapi.Frontend{Kind: f.Kind.String(), Address: f.Addr.String()}
		if f.LostTo != nil {
			x.out.Frontend.LostTo = f.LostTo.String()
		}
	case f.Addr.IsValid():
		x.out.Frontend = &statusapi.Frontend{Kind: f.Kind.String(), Address: x.packet.Dst.String()}
	}
}

func nameOf(row *proxy.ServicePort) types.NamespacedName {
	return types.NamespacedName{Namespace: row.Key.Namespace, Name: row.Key.Name}
}

// StatusOf returns the API's form of a row's status.
func StatusOf(r engine.RowStatus) statusapi.Status {
	unlessZero := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	s := statusapi.Status{State: statusapi.InForce, Since: unlessZero(r.Since)}
	if r.Pending.IsZero() {
		return s
	}
	s.State, s.Pending = statusapi.Pending, &r.Pending
	if r.Refused != "" {
		s.State, s.Reason, s.NextTry = statusapi.Refused, r.Refused, unlessZero(r.NextTry)
	}
	return s
}

// setEndpoints sets the verdict in force, the candidates, and the endpoints that are
// not candidates.
func (x *explanation) setEndpoints() {
	o, out := x.now, x.out
	if out.Verdict = o.Verdict.String(); !x.world.synced() {
		out.Verdict = unknownVerdict
		return
	}
	if !o.Frontend.Addr.IsValid() {
		return
	}
	out.Scope = o.Route.Scope.String()
	if o.Row.Affinity > 0 {
		out.Affinity = &statusapi.Affinity{Seconds: o.Row.Affinity.Seconds(), Unknown: "the kernel was not read"}
	}
	known := map[netip.AddrPort]*resolve.EndpointDescription{}
	if x.port != nil && x.port.Row.Key == o.Row.Key {
		for i := range x.port.Endpoints {
			e := &x.port.Endpoints[i]
			if e.Unused(o.Route.Scope) == resolve.Used {
				known[e.Addr] = e
				continue
			}
			if out.NotUsedCount++; len(out.NotUsed) < maxListed {
				out.NotUsed = append(out.NotUsed, notUsed(e, o.Route.Scope))
			}
		}
	}
	x.setCandidates(known)
}

func (x *explanation) setCandidates(known map[netip.AddrPort]*resolve.EndpointDescription) {
	o, out := x.now, x.out
	if o.Verdict != proxy.Forward {
		return
	}
	out.Balancing, out.Masquerade, out.CandidateCount = o.Row.Balancing.String(), o.Route.Why.String(), len(o.Backends)
	// The order of slots depends on the history of a node. Sorted by address, nodes
	// with the same endpoints list the same ones.
	backends := slices.SortedFunc(slices.Values(o.Backends), func(a, b proxy.Backend) int { return a.Addr.Compare(b.Addr) })
	shares := 0
	for _, b := range backends {
		shares += b.Share()
	}
	for i, b := range backends {
		hairpin := b.Hairpins(x.packet.Src)
		if i >= maxListed && !hairpin {
			continue // The client itself is always listed: it may be the only one that is masqueraded.
		}
		c := statusapi.Candidate{
			Address: b.Addr.String(), Share: float64(b.Share()) / float64(shares), Local: b.Local,
			Masquerade: b.Masquerade, Hairpin: hairpin,
		}
		if e := known[b.Addr]; e != nil && !e.Ready {
			c.Reason = "terminating, used because none is ready"
		}
		out.Candidates = append(out.Candidates, c)
	}
}

func notUsed(e *resolve.EndpointDescription, list proxy.Scope) statusapi.Endpoint {
	out := statusapi.Endpoint{
		Address: e.Addr.String(), UsedLocal: e.Unused(proxy.ScopeLocal) == resolve.Used, Local: e.Local,
		Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating, Weight: int(e.Weight),
		Zones: e.Zones, Slice: e.Slice, Reason: e.Unused(list).String(),
	}
	if e.Addr.Port() == 0 {
		out.Address = e.Addr.Addr().String()
	}
	return out
}
