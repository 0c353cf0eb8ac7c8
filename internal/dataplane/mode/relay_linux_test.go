package mode_test

import (
	"net"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"

	"sluice/internal/dataplane/mode"
)

// TestRelayRuns checks that a socket whose name contains that of RelaySocket does not count.
func TestRelayRuns(t *testing.T) {
	runtime.LockOSThread() // never unlocked, so that the thread ends with the test
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("make a network namespace (run as root, or under unshare -rn): %v", err)
	}
	defer ns.Close()
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
