package userspace

import (
	"testing"

	"sluice/internal/kernel/link/linktest"
)

// TestIPVSInForce refuses to begin where IPVS would take what rules lead to a socket.
func TestIPVSInForce(t *testing.T) {
	l := &linktest.Dummy{}
	if err := checkIPVS(l); err != nil {
		t.Errorf("without its link: %v", err)
	}
	if err := l.Create(); err != nil {
		t.Fatal(err)
	}
	const want = "IPVS takes packets to the addresses of link kube-ipvs0 before a socket gets them: run mode nftables until its connections " +
		"have ended and the link is gone, or sluice --cleanup, which ends them"
	if err := checkIPVS(l); err == nil || err.Error() != want {
		t.Errorf("with its link: error %v, want %s", err, want)
	}
}
