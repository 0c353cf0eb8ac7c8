package cluster

import (
	"flag"
	"strings"
	"testing"

	"sluice/test/cluster/testbed"
)

// modes are those that the daemon changes between. Not every kernel has IPVS.
var modes = flag.String("modes", "nftables,iptables", "change between these `MODES`")

// sluiceIn is our daemon in a mode.
func sluiceIn(mode string) turn {
	traces := map[string]string{
		testbed.NFTables:  "table sluice",
		testbed.IPTables:  "iptables-nft",
		testbed.IPVS:      "link kube-ipvs0, table sluice-ipvs",
		testbed.Userspace: "table sluice-userspace",
	}
	return turn{name: mode, traces: traces[mode], proxy: testbed.Proxy{Mode: mode}}
}

// circuit returns turns in which every mode follows every other once.
func circuit(modes []string) (out []turn) {
	for i, a := range modes {
		for _, b := range modes[i+1:] {
			out = append(out, sluiceIn(a), sluiceIn(b))
		}
	}
	return append(out, sluiceIn(modes[0]))
}

// TestModeChanges changes the daemon's mode, from every mode to every other, as the
// roll-out of a DaemonSet does: the old daemon stops, the new one starts. Connections
// that were opened in the first mode and in each mode since stay open, and new ones
// keep coming. Not one may break or fail, and in the end there is nothing of the
// earlier mode.
func TestModeChanges(t *testing.T) {
	s := newShift(t, circuit(strings.Split(*modes, ",")))
	for s.more() {
		s.change()
	}
}
