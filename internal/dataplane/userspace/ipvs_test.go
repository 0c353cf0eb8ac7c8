package userspace

import (
	"testing"

	"sluice/internal/kernel/link/linktest"
)

// TestIPVSInForce checks that the mode does not start where IPVS would take the packets that rules
// redirect to a socket.
func TestIPVSInForce(t *testing.T) {
	l := &linktest.Dummy{}
	if err := checkIPVS(l); err != nil {
		t.Errorf("without its link: %v", err)
	}
	if err := l.Create(); err != nil {
		t.Fatal(err)
	}
	const want = "link kube-ipvs0 exists, so IPVS takes packets to its addresses before a socket can: run mode nftables until the connections of IPVS " +
		"have ended and the link is gone, or run sluice --cleanup, which ends them"
	if err := checkIPVS(l); err == nil || err.Error() != want {
		t.Errorf("with its link: error %v, want %s", err, want)
	}
}
