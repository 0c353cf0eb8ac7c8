package iptables

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
	"sluice/internal/kernel/netfilter"
	"sluice/internal/kernel/sysctl/sysctltest"
	"sluice/internal/proxy"
)

// evaluated is a dataplane whose rules are evaluated in memory.
type evaluated struct {
	*Dataplane
	fakes map[proxy.Family]*ipttest.Fake
}

func newEvaluated() *evaluated {
	fakes, programs := map[proxy.Family]*ipttest.Fake{}, map[proxy.Family]ipt.Interface{}
	for _, f := range proxy.Families {
		fakes[f] = ipttest.NewFake()
		programs[f] = fakes[f]
	}
	k := sysctltest.NewFake(map[string]string{"net/ipv4/conf/all/route_localnet": "0"})
	return &evaluated{newDataplane(programs, k, mode.Settings{MasqueradeBit: 14}, 0), fakes}
}

// Judge implements [conformance.ModelRun].
func (e *evaluated) Judge(_ *proxy.State, p proxy.Packet, want conformance.Expect) error {
	return conformance.Evaluate(netfilter.Node{Rules: e.fakes[proxy.FamilyOf(p.Dst.Addr())]}, p, want)
}

// Objects implements [conformance.ModelRun]. Rules of rows may have any order.
func (e *evaluated) Objects() (out []string) {
	for f, fake := range e.fakes {
		tables, err := fake.Save(context.Background())
		if err != nil {
			panic(err) // the fake was not told to fail
		}
		for _, t := range tables {
			for _, c := range t.Chains {
				for _, r := range c.Rules {
					out = append(out, fmt.Sprint(f, t.Name, c.Name, r))
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

var model = conformance.Model{Mode: "iptables", Open: func() conformance.ModelRun { return newEvaluated() }}

// TestModel evaluates the rules for the whole packet table, without a kernel.
func TestModel(t *testing.T) { conformance.RunModel(t, model) }

// TestRandomModel does so for random states and packets.
func TestRandomModel(t *testing.T) { conformance.RunRandomModel(t, model, 1, 100) }

// TestPolicyModel does so for every combination that policy depends on.
func TestPolicyModel(t *testing.T) { conformance.RunPolicyModel(t, model) }
