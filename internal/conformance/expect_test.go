package conformance

import (
	"net/netip"
	"testing"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

func TestCheck(t *testing.T) {
	client, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
	pod, stranger := netip.MustParseAddrPort("10.0.0.9:80"), netip.MustParseAddrPort("10.0.0.8:80")
	c := &Case{From: FromPod, Src: client, Dst: netip.MustParseAddr("172.30.0.1"), DPort: 80}
	to := func(masq bool) Expect {
		return Expect{Verdict: proxy.Forward, To: map[netip.AddrPort]bool{pod: masq}}
	}
	answered := func(by netip.AddrPort, client netip.Addr) traffic.Seen {
		return traffic.Seen{Fate: traffic.Answered, Answer: traffic.Answer{By: by, Client: client}}
	}
	for _, tc := range []struct {
		name    string
		want    Expect
		seen    traffic.Seen
		visible bool
		ok      bool
	}{
		{"plain", to(false), answered(pod, client), true, true},
		{"masqueraded by mistake", to(false), answered(pod, other), true, false},
		{"masqueraded", to(true), answered(pod, other), true, true},
		{"not masqueraded by mistake", to(true), answered(pod, client), true, false},
		{"cannot be seen", to(true), answered(pod, client), false, true},
		{"another endpoint", to(false), answered(stranger, client), false, false},
		{"no answer", to(false), traffic.Seen{Fate: traffic.Silent}, true, false},
		{"refused", Expect{Verdict: proxy.Reject}, traffic.Seen{Fate: traffic.Refused}, true, true},
		{"reset is no refusal", Expect{Verdict: proxy.Reject}, traffic.Seen{Fate: traffic.Reset}, true, false},
		{"silence is no refusal", Expect{Verdict: proxy.Reject}, traffic.Seen{Fate: traffic.Silent}, true, false},
		{"dropped", Expect{Verdict: proxy.Drop}, traffic.Seen{Fate: traffic.Silent}, true, true},
		{"refusal is no silence", Expect{Verdict: proxy.Drop}, traffic.Seen{Fate: traffic.Refused}, true, false},
		{"untouched", Expect{}, answered(c.to(), client), true, true},
		{"touched", Expect{}, answered(pod, client), true, false},
		{"masqueraded on its way out", Expect{}, answered(c.to(), other), true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.want.check(c, tc.seen, tc.visible)
			if (err == nil) != tc.ok {
				t.Errorf("check: got error %v, want ok %t", err, tc.ok)
			}
		})
	}
}
