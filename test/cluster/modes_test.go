package cluster

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"

	"sluice/internal/kernel/ipvs"
	"sluice/test/cluster/testbed"
)

// modes are those that the daemon changes between. Not every kernel has IPVS.
var modes = flag.String("modes", "nftables,ebpf,iptables,userspace", "change between these `MODES`")

// sluiceIn is our daemon in a mode.
func sluiceIn(mode string) turn {
	t := turn{name: "sluice/" + mode, proxy: testbed.Proxy{Mode: mode}}
	switch mode {
	case testbed.NFTables:
		return sluiceNFTables()
	case testbed.IPTables:
		return sluiceIPTables()
	case testbed.IPVS:
		t.table, t.traces = "table sluice-ipvs", "link kube-ipvs0, table sluice-ipvs"
		// The mode's servers stay for as long as IPVS remembers their connections.
		t.proxy.Args = []string{"--ipvs-udp-timeout=5s", "--ipvs-tcpfin-timeout=5s"}
	case testbed.EBPF:
		t.traces = "programs, table sluice"
		t.table = t.traces
	default:
		t.table = "table sluice-" + mode
		t.proxy.Args = []string{"--userspace-drain-timeout=10m"} // a slow machine takes its time to start the next
		t.traces = t.table
	}
	return t
}

// circuit returns turns in which every mode follows every other once. From mode ipvs
// to userspace the way leads over nftables.
func circuit(modes []string) (out []turn) {
	last := ""
	next := func(mode string) {
		if last == testbed.IPVS && mode == testbed.Userspace {
			out = append(out, sluiceIn(testbed.NFTables))
		}
		out, last = append(out, sluiceIn(mode)), mode
	}
	for i, a := range modes {
		for _, b := range modes[i+1:] {
			next(a)
			next(b)
		}
	}
	next(modes[0])
	return out
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

// TestTakeoverBySockets lets mode ebpf follow kube-proxy and hand back to it, which
// knows nothing of programs at sockets.
func TestTakeoverBySockets(t *testing.T) {
	if !slices.Contains(strings.Split(*modes, ","), testbed.EBPF) {
		t.Skip("mode ebpf is none of -modes")
	}
	s := newShift(t, []turn{
		kubeProxyNFTables(), sluiceIn(testbed.EBPF), kubeProxyIPTables(), sluiceIn(testbed.EBPF), kubeProxyNFTables(),
	})
	for s.more() {
		s.change()
	}
}

// kubeProxyIPVS is the real kube-proxy in the mode that not every kernel can do.
func kubeProxyIPVS() turn {
	return turn{
		name: "kube-proxy/ipvs", traces: "IP sets, iptables-nft, link kube-ipvs0",
		proxy: testbed.Proxy{Mode: testbed.IPVS, KubeProxy: true},
	}
}

// TestTakeoverFromIPVS lets our modes follow kube-proxy's mode ipvs and hand back to
// it.
func TestTakeoverFromIPVS(t *testing.T) {
	if k, err := ipvs.Open(); errors.Is(err, ipvs.ErrMissing) {
		t.Skip("this kernel has no IPVS (module ip_vs); TestInGuest can play it in a virtual machine: -guest-tests " + t.Name())
	} else if err != nil {
		t.Fatal(err)
	} else if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	s := newShift(t, []turn{
		kubeProxyIPVS(), sluiceIn(testbed.IPVS), kubeProxyIPVS(), sluiceIn(testbed.NFTables),
	})
	for s.more() {
		s.change()
	}
}
