package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// advise adds what to try, and notes.
func (x *explanation) advise() {
	x.out.Try = x.try()
	x.noteLosers()
	x.noteSimilar()
	x.noteDenied()
	x.noteHNS()
	x.noteOtherNode()
	if x.target.port != nil {
		for _, f := range x.target.port.Frontends[1:] {
			if f.LostTo != nil {
				x.note("its %v %v belongs to Service %v, whose claim to it has priority", f.Kind, f.Addr, f.LostTo)
			}
		}
	}
}

func (x *explanation) note(format string, args ...any) {
	x.out.Notes = append(x.out.Notes, fmt.Sprintf(format, args...))
}

// noteLosers names the Services that also claim the frontend, and do not have it.
func (x *explanation) noteLosers() {
	f := x.want.Frontend
	if !f.Addr.IsValid() || x.target.port != nil {
		return
	}
	for i, c := range x.world.Resolver.Claimants(f.Addr, x.packet.Protocol) {
		if i > 0 {
			x.note("Service %s/%s claims it too, but the claim of %s/%s has priority",
				c.Key.Namespace, c.Key.Name, x.want.Row.Key.Namespace, x.want.Row.Key.Name)
		}
	}
}

// noteSimilar names the Services that have the address or the NodePort, if none has
// both address and port.
func (x *explanation) noteSimilar() {
	if x.out.Reason != statusapi.NoSuchFrontend {
		return
	}
	dst, notes, contradiction := x.packet.Dst, map[string]bool{}, ""
	if slices.Contains(x.world.Resolver.State().Node.IPs, dst.Addr()) {
		contradiction = ", although its Node object has it: is the object outdated, or --hostname-override wrong?"
	}
	sharing := map[types.NamespacedName]bool{}
	for _, row := range x.owners {
		for _, f := range row.Frontends {
			switch {
			case f.Addr.Addr() == dst.Addr():
				sharing[nameOf(row)] = true
			case f.Kind == proxy.NodePort && !x.packet.DstLocal && row.Key.Family == proxy.FamilyOf(dst.Addr()) &&
				row.Key.Protocol == x.packet.Protocol && f.Addr.Port() == dst.Port():
				notes[fmt.Sprintf("%d is a NodePort of Service %v, but %v is not known as an address of this node%s",
					dst.Port(), nameOf(row), dst.Addr(), contradiction)] = true
			}
		}
	}
	for name := range sharing {
		ports, _ := x.world.Resolver.Ports(name)
		notes[fmt.Sprintf("%v is an address of Service %v, which has %s", dst.Addr(), name, portList(ports))] = true
	}
	x.out.Notes = append(x.out.Notes, slices.Sorted(maps.Keys(notes))...)
}

// maxDenied bounds how many problems of denied addresses an answer lists.
const maxDenied = 8

// noteOtherNode says that another node decides, if the client is a pod of one. Only what
// it sends to an address of this node gets here first.
func (x *explanation) noteOtherNode() {
	client, r := x.target.from, x.world.Resolver
	if !client.IsValid() || x.packet.SrcLocal || x.packet.DstLocal {
		return
	}
	sameFamily := func(p netip.Prefix) bool { return proxy.FamilyOf(p.Addr()) == proxy.FamilyOf(client) }
	pods := slices.DeleteFunc(slices.Clone(r.PodCIDRs()), func(p netip.Prefix) bool { return !sameFamily(p) })
	switch here, elsewhere := r.Location(client); {
	case here:
		return
	case elsewhere:
		x.note("the client is on another node, as EndpointSlices say: that node decides where its connections to Services go, " +
			"so ask there; this answer is what this node would do")
	case x.now.Origin == proxy.OurPod && x.in == "" && len(pods) > 0 && !proxy.Contains(pods, client):
		x.note("the client is not within %s, this node's pod range in its Node object: if it is another node's pod, "+
			"that node decides where its connections to Services go, so ask there; this answer is what this node would do", prefixList(pods))
	default:
		return
	}
	x.out.Try = append(x.out.Try, fmt.Sprintf("kubectl get pods -A -o wide --field-selector status.podIP=%v", client))
}

// noteDenied lists addresses that the configuration denies: to the Service that the
// question names, or the question's address to any Service.
func (x *explanation) noteDenied() {
	r := x.world.Resolver
	var denied []resolve.Problem
	switch {
	case x.target.port != nil:
		denied = slices.DeleteFunc(r.ProblemsOf(nameOf(x.target.port.Row)), func(p resolve.Problem) bool { return !p.Denied.IsValid() })
	case x.want.Row == nil:
		denied = r.Denied(x.packet.Dst.Addr())
		if len(denied) > 0 {
			x.out.Try = append(x.out.Try, "if the Service may have the address, widen the option that the note names, on all nodes")
		}
	}
	for _, p := range denied[:min(len(denied), maxDenied)] {
		x.note("%v", p)
	}
}

// try returns what to do, by reason.
func (x *explanation) try() []string {
	namespace, name := "", ""
	if s := x.out.Service; s != nil {
		namespace, name = s.Namespace, s.Name
	}
	show := fmt.Sprintf("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s", namespace, name)
	switch x.out.Reason {
	case statusapi.NotSynced:
		return trySync()
	case statusapi.NoSuchFrontend:
		return []string{
			fmt.Sprintf("kubectl get services -A -o wide | grep -F %v", x.packet.Dst.Addr()),
			"check that the Service is in this cluster, and that the packet is for this node",
		}
	case statusapi.PortNotOfService:
		return []string{"use a port of the Service: " + x.portsOfService()}
	case statusapi.UnallocatedAddress:
		return []string{"the Service may have been deleted: resolve its name again, the client may use an old address"}
	case statusapi.NodePortClosedHere:
		return []string{"use an address that takes NodePorts, or change --nodeport-addresses"}
	case statusapi.SourceRange:
		return []string{fmt.Sprintf("add the client to spec.loadBalancerSourceRanges: kubectl -n %s edit service %s", namespace, name)}
	case statusapi.NoEndpoints:
		return []string{show, "check that spec.selector matches the labels of running pods"}
	case statusapi.NotReady:
		return []string{show + " -o yaml", "find out why readiness probes fail: kubectl -n " + namespace + " describe pods"}
	case statusapi.NoLocalEndpoint:
		return x.tryLocalPolicy()
	case statusapi.PortNameMismatch:
		return []string{fmt.Sprintf("name the port of the Service as the EndpointSlices do: kubectl -n %s edit service %s", namespace, name)}
	case statusapi.LostClaim:
		return []string{"remove the address from one of the two Services"}
	case statusapi.RefusedByKernel:
		return []string{"sluice status --problems", "the daemon retries by itself, with back-off"}
	}
	return tryUnserved(x.out.Reason)
}

func trySync() []string {
	return []string{"sluice status --wait", "if that does not return, sluice status says what it waits for, or why a sync fails"}
}

// tryLocalPolicy returns what to do if policy Local leaves no endpoint. No load balancer
// is in front of a ClusterIP: its clients are pods of this node and the node itself.
func (x *explanation) tryLocalPolicy() []string {
	policy := x.trafficPolicy()
	run := fmt.Sprintf("run a pod of the Service on this node, or set spec.%s to Cluster", policy)
	if policy == "internalTrafficPolicy" {
		return []string{run, "with policy Local, every node with clients needs a pod: run the pods as a DaemonSet"}
	}
	return []string{run, "a load balancer should exclude this node by its health check"}
}

// tryUnserved returns what to do about a Service, or an address, that is not served.
func tryUnserved(why statusapi.Reason) []string {
	switch why {
	case statusapi.Headless:
		return []string{"connect to a pod's own address, which DNS returns for the Service's name"}
	case statusapi.ExternalName:
		return []string{"connect to the host that DNS returns for the Service's name, on a port that this host has"}
	case statusapi.NoPorts:
		return []string{"give the Service a port: spec.ports"}
	case statusapi.FamilyNotServed:
		return []string{"use an address of the other family, or enable this one and restart the daemon"}
	case statusapi.OtherProxy:
		return []string{"check the proxy that the label names, or remove the label " + labelOtherProxy}
	}
	return nil
}

func (x *explanation) portsOfService() string {
	ports, _ := x.world.Resolver.Ports(nameOf(x.want.Row))
	if len(ports) == 0 {
		return "it has none"
	}
	return portList(ports)
}
