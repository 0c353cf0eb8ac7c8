package conformance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"sluice/internal/explain"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// fitting maps each verdict to its possible reasons.
var fitting = map[proxy.Verdict][]statusapi.Reason{
	proxy.Forward: {statusapi.Forwarded, statusapi.LostClaim},
	proxy.Reject:  {statusapi.NoEndpoints, statusapi.NotReady, statusapi.PortNameMismatch, statusapi.PortNotOfService, statusapi.NodePortClosedHere},
	proxy.Drop:    {statusapi.SourceRange, statusapi.NoLocalEndpoint, statusapi.UnallocatedAddress},
	proxy.Untouched: {
		statusapi.NoSuchFrontend, statusapi.NodePortClosedHere, statusapi.RelayedByDaemon,
	},
}

// TestExplain explains every packet of the table: the result must equal the table's, and the reason
// must fit.
func TestExplain(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]int{}
	for _, g := range all.Groups {
		t.Run(g.ID, func(t *testing.T) {
			for i, w := range g.worlds() {
				r := w.newResolver(oracleMode)
				for _, c := range g.casesFor(oracleMode, g.Phases[i].Name) {
					if c.From == FromInside {
						continue // It never reaches the node, so nobody can ask about it there.
					}
					given[c.Reason]++
					if err := explained(r, c); err != nil {
						t.Errorf("%s: %v", c.ID, err)
					}
				}
			}
		})
	}
	for _, reason := range statusapi.Reasons {
		switch reason {
		case statusapi.NotSynced, statusapi.RefusedByKernel, statusapi.Headless, statusapi.ExternalName, statusapi.NoPorts, statusapi.FamilyNotServed, statusapi.OtherProxy:
			// The table has no packet for state that is not in the kernel yet, and no packet can be
			// sent to a Service without an address here.
		default:
			if given[string(reason)] == 0 {
				t.Errorf("no case expects %s", reason)
			}
		}
	}
}

// explained explains a case and compares the result with the table.
func explained(r *resolve.Resolver, c *Case) error {
	w := explain.World{Resolver: r, Local: c.isLocal}
	got, err := w.Explain(explain.Question{
		To: cmp.Or(c.Service, c.to().String()), From: c.Src.String(), Protocol: c.protocol().String(), In: clients[c.From].link,
	})
	if err != nil {
		return err
	}
	if got.Explanation.Packet.To != c.to().String() {
		return fmt.Errorf("%s is explained as %s", c.Service, got.Explanation.Packet.To)
	}
	is := Expect{Verdict: map[string]proxy.Verdict{"forward": proxy.Forward}[got.Verdict], To: map[netip.AddrPort]bool{}}
	if is.Verdict != proxy.Forward {
		is.Verdict = verdicts[got.Verdict]
	}
	for _, b := range got.Candidates {
		is.To[netip.MustParseAddrPort(b.Address)] = b.Masquerade
	}
	if want := c.expected(oracleMode); !is.equal(want) {
		return fmt.Errorf("explained: %v\n\twant:   %v", is, want)
	}
	if c.Reason != "" && got.Reason != statusapi.Reason(c.Reason) || !slices.Contains(fitting[is.Verdict], got.Reason) {
		return fmt.Errorf("reason %s (%s), want %s, and one that fits %v", got.Reason, got.Message, c.Reason, is)
	}
	return nil
}
