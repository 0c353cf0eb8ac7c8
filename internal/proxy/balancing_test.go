package proxy

import (
	"testing"
	"unsafe"
)

func TestBalancingWords(t *testing.T) {
	for _, b := range Balancings {
		if got, err := ParseBalancing(b.String()); got != b || err != nil {
			t.Errorf("%q is read as %v, %v", b.String(), got, err)
		}
	}
	if got := BalancingWords([]Balancing{Random}); got != "random" {
		t.Errorf("one way is called %q", got)
	}
	const words = " is not random, round-robin, least-connections, source-hash or maglev"
	for _, text := range []string{"", "default", "Random", "rr", "round-robin "} {
		if got, err := ParseBalancing(text); got != BalanceDefault || err == nil || err.Error() != `"`+text+`"`+words {
			t.Errorf("%q is read as %v, %v", text, got, err)
		}
	}
}

// TestEndpointSize keeps Endpoint small, because there may be hundreds of thousands.
func TestEndpointSize(t *testing.T) {
	if got, most := unsafe.Sizeof(Endpoint{}), uintptr(40); got > most {
		t.Errorf("an endpoint takes %d bytes; want at most %d", got, most)
	}
}

// TestEndpointShare checks that an endpoint without a weight counts as 1.
func TestEndpointShare(t *testing.T) {
	for weight, want := range map[uint16]int{0: 1, 1: 1, 2: 2, 65535: 65535} {
		if got := (Endpoint{Weight: weight}).Share(); got != want {
			t.Errorf("weight %d counts %d; want %d", weight, got, want)
		}
	}
}
