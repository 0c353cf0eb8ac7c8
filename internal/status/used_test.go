package status

import (
	"fmt"
	"net/netip"
	"testing"

	"sluice/internal/proxy"
)

// TestUsed checks that an endpoint in both lists counts once, and that no set of all
// endpoints is built: a Service may have a thousand ports with thousands of endpoints
// each.
func TestUsed(t *testing.T) {
	row := &proxy.ServicePort{Local: []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.9.9.9:80"), Local: true}}}
	for i := range 5000 {
		row.Cluster = append(row.Cluster, proxy.Endpoint{Addr: netip.MustParseAddrPort(fmt.Sprintf("10.1.%d.%d:80", i/250, i%250)), Local: i%1000 == 0})
	}
	row.Local = append(row.Local, row.Cluster[0], row.Cluster[1000])
	if n := used(row); n != 5001 {
		t.Errorf("%d endpoints, want 5001", n)
	}
	if n := testing.AllocsPerRun(10, func() { used(row) }); n > 4 {
		t.Errorf("%v allocations, want at most 4", n)
	}
}
