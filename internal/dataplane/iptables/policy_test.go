package iptables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// rendering is what a row renders to: its own chains, and its rules in shared chains.
type rendering struct {
	chains           map[string][]string
	dispatch, others []string
}

func rendered(v *nodeMatches, sp *proxy.ServicePort) *rendering {
	r := &rendering{chains: map[string][]string{}}
	(&family{Family: v.family}).render(v, sp, func(x id, val value) {
		switch {
		case x.rule == "":
			r.chains[x.chain] = val.rules
		case x.chainRef == dispatch || x.chainRef == dispatchPort:
			r.dispatch = append(r.dispatch, x.rule)
		default:
			r.others = append(r.others, x.table+" "+x.chain+" "+x.rule)
		}
	})
	return r
}

// TestSameRows checks that two nodes for which sameRows holds have the same rules.
func TestSameRows(t *testing.T) {
	for _, fam := range proxy.Families {
		for _, a := range proxytest.PolicyNodes() {
			for _, b := range proxytest.PolicyNodes() {
				va, vb := newNodeMatches(fam, a), newNodeMatches(fam, b)
				if !va.same(vb) {
					continue
				}
				for _, sp := range proxytest.PolicyRows(fam) {
					if diff := cmp.Diff(rendered(va, sp), rendered(vb, sp), cmp.AllowUnexported(rendering{})); diff != "" {
						t.Fatalf("%v, %+v and %+v make other rules:\n%s", fam, a, b, diff)
					}
				}
			}
		}
	}
}

// TestResetTCP checks that TCP rows without endpoints are refused by resets if the setting is
// on, and that no other rows are.
func TestResetTCP(t *testing.T) {
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
		for _, asked := range []bool{false, true} {
			sp := &proxy.ServicePort{
				Key:       proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "idle", Protocol: p}},
				Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: netip.MustParseAddrPort("10.96.0.40:80")}},
			}
			v := newNodeMatches(proxy.IPv4, &proxy.Node{})
			v.resetTCP = asked
			text := fmt.Sprint(rendered(v, sp).others)
			if got, want := strings.Contains(text, "tcp-reset"), asked && p == proxy.TCP; got != want {
				t.Errorf("%v, setting %t; resets: %t, want %t:\n%s", p, asked, got, want, text)
			}
		}
	}
}
