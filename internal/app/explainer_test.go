package app

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice/internal/engine"
	"sluice/internal/explain"
	"sluice/internal/resolve"
)

// TestExplainAsksTheKernelUnlocked checks that the kernel is asked about each address once,
// and while the engine is free to sync.
func TestExplainAsksTheKernelUnlocked(t *testing.T) {
	s := &ProxyServer{plan: plan{options: NewOptions(), node: "here"}}
	e := engine.New(engine.Settings{Resolver: resolve.New(resolve.Settings{NodeName: "here"})})
	var asked []string
	links := nodeLinks{ask: func(a netip.Addr) (string, error) {
		asked = append(asked, a.String())
		free := make(chan struct{})
		go func() { e.Refused(); close(free) }()
		select {
		case <-free:
		case <-time.After(10 * time.Second):
			t.Fatal("the kernel is asked while the engine is locked")
		}
		if a == netip.MustParseAddr("192.0.2.1") {
			return "eth0", nil
		}
		return "", nil
	}}
	a, err := s.answer(e, explain.Question{To: "192.0.2.1:80", From: "198.51.100.7"}, nil, &links)
	if err != nil || !a.Packet.DstLocal || a.Packet.SrcLocal {
		t.Errorf("packet %+v, error %v; want one to the node, from elsewhere", a.Packet, err)
	}
	if want := []string{"192.0.2.1", "198.51.100.7"}; !slices.Equal(asked, want) {
		t.Errorf("the kernel was asked about %q, want %q", asked, want)
	}
}
