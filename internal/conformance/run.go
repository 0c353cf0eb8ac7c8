package conformance

import (
	"context"
	"testing"

	"sluice/internal/proxy"
)

// Dataplane is a dataplane to be put under the table.
type Dataplane struct {
	Mode string // the table's column: nftables or iptables

	// Open is called inside the node's network namespace, and so is every
	// method of what it returns. Several may be open at once, each in a
	// namespace of its own.
	Open func(context.Context) (proxy.Dataplane, error)
}

// RunOracle checks the table against the oracle alone.
func RunOracle(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all.Groups {
		t.Run(g.ID, func(t *testing.T) { report(t, "", g.names(oracleMode), g.oracle()) })
	}
}

// report makes failures those of the test and of its cases.
func report(t *testing.T, mode string, cases []string, failures []Failure) {
	t.Helper()
	byCase := map[string][]Failure{}
	for _, f := range failures {
		byCase[f.Case] = append(byCase[f.Case], f)
	}
	for _, f := range byCase[""] {
		t.Errorf("%v", f)
	}
	for _, id := range cases {
		t.Run(id, func(t *testing.T) {
			for _, f := range byCase[id] {
				if f.Skip {
					t.Skip(f.Got)
				}
				t.Errorf("%v", f)
			}
			if t.Failed() && mode != "" {
				t.Logf("replay: go test ./internal/dataplane/%s -run '%s'", mode, t.Name())
			}
		})
	}
}
