package ipvs

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/netfilter"
	"sluice/internal/proxy"
)

// evaluated is a dataplane whose rules and virtual servers are evaluated in memory.
type evaluated struct {
	*Dataplane
	host *host
}

// priorityIPVS is where IPVS sees the packets that the node sends.
const priorityIPVS = -98

// Run implements [netfilter.Rules]: IPVS takes packets of the node amid the rules of output.
func (e *evaluated) Run(h netfilter.Hook, nat bool, p *netfilter.Packet, choose netfilter.Choose) netfilter.Verdict {
	rules := e.host.rules
	if h != netfilter.Output || !nat {
		return rules.Run(h, nat, p, choose)
	}
	if v := rules.RunPriorities(math.MinInt32, priorityIPVS, h, nat, p, choose); v != netfilter.Accept {
		return v
	}
	if e.schedule(p, choose) {
		return rules.Run(h, false, p, choose) // the packet passes the hook again
	}
	return rules.RunPriorities(priorityIPVS+1, math.MaxInt32, h, nat, p, choose)
}

// schedule sends a packet to a real server of the virtual server that it is for.
func (e *evaluated) schedule(p *netfilter.Packet, choose netfilter.Choose) bool {
	reals, err := e.host.servers.Reals(context.Background(), ipvs.Server{Protocol: p.Protocol, Addr: p.Dst})
	if err != nil {
		panic(err) // the fake was not told to fail
	}
	reals = slices.DeleteFunc(reals, func(r ipvs.RealState) bool { return r.Weight == 0 })
	if len(reals) == 0 {
		return false
	}
	p.Dst = reals[choose(uint32(len(reals)))].Addr
	return true
}

// Judge implements [conformance.ModelRun].
func (e *evaluated) Judge(s *proxy.State, p proxy.Packet, want conformance.Expect) error {
	on, routed, err := e.host.link.List()
	if err != nil {
		return err
	}
	if want.Verdict == proxy.Untouched && Binds(s, p.Dst.Addr()) {
		want.Verdict = proxy.Reject
	}
	ours := slices.Concat(on, routed)
	return conformance.Evaluate(netfilter.Node{
		Rules: e, Deliver: e.schedule, IsLocal: func(a netip.Addr) bool { return slices.Contains(ours, a) },
	}, p, want)
}

// Objects implements [conformance.ModelRun] with the servers; package nftables compares rules.
func (e *evaluated) Objects() (out []string) {
	for len(e.drained) > 0 { // as Run does
		if err := e.drain(context.Background()); err != nil {
			panic(err)
		}
	}
	servers, err := e.host.servers.Servers(context.Background())
	if err != nil {
		panic(err)
	}
	for s, settings := range servers {
		out = append(out, fmt.Sprintf("%v %+v %v", s, settings, e.host.reals(s)))
	}
	on, routed, _ := e.host.link.List()
	for _, a := range slices.Concat(on, routed) {
		out = append(out, "address "+a.String())
	}
	slices.Sort(out)
	return out
}

// Binds reports whether an address is on our link: IPVS sees only packets that are
// for this host. So what this mode cannot do is to leave alone the other ports of
// load-balancer and external addresses; it refuses them, as kube-proxy's does.
func Binds(s *proxy.State, a netip.Addr) bool {
	for _, sp := range s.Rows {
		for _, f := range sp.Frontends {
			if f.Addr.Addr() == a && !slices.Contains(lab.Config{}.LocalAddrs(), a) {
				return true
			}
		}
	}
	return false
}

// model returns the packet table's model of the mode. The host has the addresses of the table's node.
func model(t *testing.T) conformance.Model {
	return conformance.Model{Mode: "ipvs", Open: func() conformance.ModelRun {
		h := newHost(t)
		h.other = lab.Config{}.LocalAddrs()
		return &evaluated{h.open(mode.IPVS{}), h}
	}}
}

// TestModel evaluates rules and servers for the whole packet table, without a kernel.
func TestModel(t *testing.T) { conformance.RunModel(t, model(t)) }

// TestRandomModel does so for random states and packets.
func TestRandomModel(t *testing.T) { conformance.RunRandomModel(t, model(t), 1, 100) }

// TestPolicyModel does so for every combination that policy depends on.
func TestPolicyModel(t *testing.T) { conformance.RunPolicyModel(t, model(t)) }
