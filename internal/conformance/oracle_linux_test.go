package conformance

import "testing"

// TestOracle checks the table against the oracle alone.
func TestOracle(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all.Groups {
		t.Run(g.ID, func(t *testing.T) { report(t, g.casesFor(oracleMode), g.checkOracle()) })
	}
}
