package nftables

import (
	"slices"
	"testing"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy/proxytest"
)

// TestRowsDoNotDependOnTheNode checks that a row has the same elements on every node, so that
// a change of the node rewrites only constant chains.
func TestRowsDoNotDependOnTheNode(t *testing.T) {
	d := Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14})
	nodes := proxytest.PolicyNodes()
	for _, tab := range d.tables {
		for _, sp := range proxytest.PolicyRows(tab.family) {
			want, err := tab.renderRow(differ.Row{ServicePort: sp, Node: nodes[0]})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes[1:] {
				got, err := tab.renderRow(differ.Row{ServicePort: sp, Node: n})
				if err != nil {
					t.Fatal(err)
				}
				for i := range want.frontends {
					if !slices.EqualFunc(got.frontends[i].objects, want.frontends[i].objects, sameObject) {
						t.Fatalf("row %s, %v: other elements on node %+v", sp.Key.Name, sp.Frontends[i].Kind, n)
					}
				}
			}
		}
	}
}
