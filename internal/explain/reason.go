package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// setReason sets why the packet has its verdict.
func (x *explanation) setReason() {
	out := x.out
	out.Reason, out.Message = x.policyReason()
	if x.world.View != nil {
		x.kernelReason()
	}
	if p := x.target.port; p != nil && p.Frontends[0].LostTo != nil {
		out.Reason = statusapi.LostClaim
		out.Message = fmt.Sprintf("%v belongs to Service %v, whose claim to it has priority.", x.packet.Dst, p.Frontends[0].LostTo)
	}
}

// kernelReason replaces the reason if the kernel does not have the wanted state.
func (x *explanation) kernelReason() {
	out := x.out
	s := statusapi.Status{}
	if out.Service != nil && out.Service.Status != nil {
		s = *out.Service.Status
	}
	switch {
	case !x.world.synced():
		out.Reason, out.Message = statusapi.NotSynced, x.world.notSynced()
	case s.State == statusapi.Refused:
		out.Reason, out.Message = statusapi.RefusedByKernel, "The kernel refuses the service port: "+s.Reason+"."
	case !sameOutcome(x.want, x.now):
		out.Reason, out.Message = statusapi.NotSynced, "The kernel does not have the wanted state yet."
	}
}

// sameOutcome reports whether two outcomes differ in nothing but the order of
// backends.
func sameOutcome(a, b proxy.Outcome) bool {
	sort := func(list []proxy.Backend) []proxy.Backend {
		return slices.SortedFunc(slices.Values(list), func(a, b proxy.Backend) int { return a.Addr.Compare(b.Addr) })
	}
	return a.Verdict == b.Verdict && a.Reason == b.Reason && slices.Equal(sort(a.Backends), sort(b.Backends))
}

// policyReason returns the oracle's reason for the wanted state, or a more specific
// one that the oracle cannot know.
func (x *explanation) policyReason() (statusapi.Reason, string) {
	o, dst, row := x.want, x.packet.Dst, x.want.Row
	switch o.Reason {
	case proxy.Forwarded:
		if len(o.Backends) == 1 {
			return statusapi.Forwarded, "It goes to one endpoint."
		}
		return statusapi.Forwarded, fmt.Sprintf("It goes to one of %s.", count(len(o.Backends), "endpoint"))
	case proxy.NoEndpoints:
		return x.noEndpoints()
	case proxy.NoLocalEndpoint:
		return statusapi.NoLocalEndpoint, fmt.Sprintf("%s is Local, and no usable endpoint is on this node.", x.trafficPolicy())
	case proxy.SourceRange:
		return statusapi.SourceRange, fmt.Sprintf("The client is in none of loadBalancerSourceRanges (%s).", prefixList(o.Route.From))
	case proxy.NodePortClosedHere:
		if node := x.world.Resolver.State().Node; node.Relays(x.packet.Protocol, dst.Addr()) {
			return x.relayed(row.Policy(proxy.NodePort, node)[proxy.ThisNode].To)
		}
		text := fmt.Sprintf("%d is a NodePort, and %v does not take NodePorts: %s.", dst.Port(), dst.Addr(), x.nodePortAddresses())
		if o.Verdict == proxy.Reject {
			text += " Rules refuse it there, because of gate KubeProxyNFTablesLocalhostNodePorts."
		}
		return statusapi.NodePortClosedHere, text
	case proxy.PortNotOfService:
		return statusapi.PortNotOfService, fmt.Sprintf("%v is the ClusterIP of %s/%s, which has no port %d/%v.",
			dst.Addr(), row.Key.Namespace, row.Key.Name, dst.Port(), x.packet.Protocol)
	}
	if f := proxy.FamilyOf(dst.Addr()); x.world.Families != nil && !slices.Contains(x.world.Families, f) {
		return statusapi.FamilyNotServed, fmt.Sprintf("This node does not serve %v, whether or not a Service has %v. Ordinary routing applies.", f, dst)
	}
	for _, u := range x.world.Unserved {
		if slices.Contains(u.Addresses, dst.Addr()) {
			return u.Why, fmt.Sprintf("%v is an address of Service %v, which is not served here: %s.", dst.Addr(), u.Name, u.Detail)
		}
	}
	if o.Reason == proxy.UnallocatedAddress {
		return statusapi.UnallocatedAddress, fmt.Sprintf("%v is in the range of ClusterIPs, and no Service has it.", dst.Addr())
	}
	consequence := "Ordinary routing applies."
	if o.Verdict == proxy.Reject {
		consequence = "Mode ipvs rejects other ports of an address that a Service has."
	}
	return statusapi.NoSuchFrontend, fmt.Sprintf("No Service has %v/%v. %s", dst, x.packet.Protocol, consequence)
}

// relayed returns that the daemon relays to endpoints, or why there are none.
func (x *explanation) relayed(to []proxy.Endpoint) (statusapi.Reason, string) {
	if len(to) == 0 {
		return x.noEndpoints()
	}
	return statusapi.RelayedByDaemon, fmt.Sprintf("%d is a NodePort. Rules leave %v alone: the daemon listens there, and relays to one of %s.",
		x.packet.Dst.Port(), x.packet.Dst.Addr(), count(len(to), "endpoint"))
}

// trafficPolicy returns the field of the Service that limits the packet to endpoints on
// this node.
func (x *explanation) trafficPolicy() string {
	if x.want.Frontend.Kind == proxy.ClusterIP {
		return "internalTrafficPolicy"
	}
	return "externalTrafficPolicy"
}

// nodePortAddresses returns which of the node's addresses take NodePorts, in words.
func (x *explanation) nodePortAddresses() string {
	within, except := x.world.Resolver.State().Node.NodePortAddresses(proxy.FamilyOf(x.packet.Dst.Addr()))
	switch {
	case len(within) == 0:
		return "no address of that family does"
	case len(except) > 0 && x.packet.Dst.Addr().IsLoopback():
		return "addresses within " + prefixList(within) + " do, except loopback addresses"
	default:
		return "addresses within " + prefixList(within) + " do"
	}
}

// noEndpoints returns why no endpoint can be used: there are none, or what keeps all
// of them from being used.
func (x *explanation) noEndpoints() (statusapi.Reason, string) {
	p := x.port
	switch {
	case p == nil || len(p.Endpoints) == 0:
		return statusapi.NoEndpoints, "The Service has no endpoints."
	case p.PortMissing:
		return statusapi.PortNameMismatch, fmt.Sprintf("The Service's port is named %q (%v), and its EndpointSlices have %s.",
			p.Row.Key.Port, p.Row.Key.Protocol, slicePorts(p.SlicePorts))
	case slices.ContainsFunc(p.Endpoints, unready):
		return statusapi.NotReady, fmt.Sprintf("The Service has %s, and none is ready.", count(len(p.Endpoints), "endpoint"))
	default:
		first := &p.Endpoints[0]
		return statusapi.NoEndpoints, fmt.Sprintf("The Service has %s, and none can be used (%v: %v).",
			count(len(p.Endpoints), "endpoint"), first.Addr.Addr(), first.Unused(proxy.ScopeCluster))
	}
}

// unready reports whether an endpoint is not used because of its conditions.
func unready(e resolve.EndpointDescription) bool {
	switch e.Unused(proxy.ScopeCluster) {
	case resolve.UnusedNotReady, resolve.UnusedNotServing, resolve.UnusedTerminating:
		return true
	default:
		return false
	}
}

func slicePorts(ports []resolve.SlicePort) string {
	var out []string
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%q (%d/%v)", p.Name, p.Port, p.Protocol))
	}
	if len(out) == 0 {
		return "no ports"
	}
	return strings.Join(out, ", ")
}

// count returns a number of things, for example "1 endpoint" or "2 endpoints".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// prefixList returns the first prefixes as text, and how many more there are.
func prefixList(prefixes []netip.Prefix) string {
	var out []string
	for i, p := range prefixes {
		if i == 8 {
			out = append(out, fmt.Sprintf("%d more", len(prefixes)-i))
			break
		}
		out = append(out, p.String())
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
