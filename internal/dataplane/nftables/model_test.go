package nftables

import (
	"strings"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/netfilter"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
)

// evaluated is a dataplane whose rules are evaluated in memory.
type evaluated struct {
	*Dataplane
	t    *testing.T
	fake *nfttest.Fake
}

func (e *evaluated) Judge(_ *proxy.State, p proxy.Packet, want conformance.Expect) error {
	return conformance.Evaluate(netfilter.Node{Rules: e.fake}, p, want)
}

func (e *evaluated) Objects() []string {
	return strings.Split(dumpOnce(e.t, e.fake, e.Dataplane), "\n")
}

func model(t *testing.T) conformance.Model {
	return conformance.Model{Mode: "nftables", Open: func() conformance.ModelRun {
		fake := nfttest.NewFake()
		return &evaluated{Alone.New(fake, mode.Settings{MasqueradeBit: 14}), t, fake}
	}}
}

// TestModel evaluates the rules for the whole packet table, without a kernel.
func TestModel(t *testing.T) { conformance.RunModel(t, model(t)) }

// TestRandomModel does so for random states and packets.
func TestRandomModel(t *testing.T) { conformance.RunRandomModel(t, model(t), 1, 100) }

// TestPolicyModel does so for every combination that policy depends on.
func TestPolicyModel(t *testing.T) { conformance.RunPolicyModel(t, model(t)) }
