package mode_test

import (
	"net"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
)

// TestRelayRuns checks that a socket whose name contains that of RelaySocket does not count.
func TestRelayRuns(t *testing.T) {
	lab.Namespace(t)
	for _, c := range []struct {
		name string
		runs bool
	}{
		{"@\n\n \n" + mode.RelaySocket[1:], false},
		{"@\n" + mode.RelaySocket + "\n", false},
		{mode.RelaySocket, true},
	} {
		l, err := net.Listen("unixpacket", c.name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if runs, err := mode.RelayRuns(); runs != c.runs || err != nil {
			t.Errorf("with a socket %q: %v, error %v; want %v", c.name, runs, err, c.runs)
		}
	}
}
