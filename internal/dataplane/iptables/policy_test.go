package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// walk takes a packet of an origin through a chain that tells origins apart, and
// returns whether it is marked and where it goes on.
func walk(v *nodeMatches, rules []string, origin proxy.Origin) (got treatment) {
	for _, r := range rules {
		ofPod := slices.ContainsFunc(v.pods, func(match string) bool { return strings.HasPrefix(r, match) })
		if ofPod && origin != proxy.OurPod || strings.Contains(r, fromLocal) && origin != proxy.ThisNode {
			continue
		}
		switch to := r[strings.LastIndex(r, " ")+1:]; to {
		case kubeMark:
			got.mark = true
		case "RETURN":
			return got
		default:
			got.next = to
			return got
		}
	}
	return got
}

// rendering is what a row becomes: its own chains, rules that lead there and others.
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

// TestPolicyTable wants the rules of every row, for every kind, origin and
// setting of the node, to do what the table of policy says: those that all rows
// share, which are made from one row's table, and a row's own.
func TestPolicyTable(t *testing.T) {
	for _, fam := range proxy.Families {
		for _, node := range proxytest.PolicyNodes() {
			v := newNodeMatches(fam, node)
			marked := v.byOrigin(v.clusterIP, "")
			for _, sp := range proxytest.PolicyRows(fam) {
				r := rendered(v, sp)
				cluster, local := clusterChain+hash(sp.Key, ""), localChain+hash(sp.Key, "")
				for _, f := range sp.Frontends {
					policy := sp.Policy(f.Kind, node)
					for origin, route := range policy {
						if proxy.Origin(origin) == proxy.OurPod && v.pods == nil {
							continue // no packet is a pod's
						}
						name := fmt.Sprintf("%v, %+v: %s %v from %v", fam, node, sp.Key.Name, f.Kind, proxy.Origin(origin))
						want := treatment{mark: route.Masquerade}
						if len(route.To) > 0 {
							want.next = cluster
							if route.Scope == proxy.ScopeLocal {
								want.next = local
							}
						}
						var got treatment
						if f.Kind == proxy.ClusterIP {
							got = walk(v, marked, proxy.Origin(origin))
							got.next = dispatched(r, f)
							if want.next != "" && !slices.ContainsFunc(r.chains[want.next], func(rule string) bool { return strings.HasSuffix(rule, "-j "+kubeMarkOther) }) {
								got.mark = false
							}
							if want.next == "" {
								want.mark = got.mark // nobody goes anywhere
							}
						} else if dispatched(r, f) != "" {
							got = walk(v, r.chains[externalChain+hash(sp.Key, "")], proxy.Origin(origin))
						} else {
							want.mark = false
						}
						if got != want {
							t.Fatalf("%s: %+v, want %+v\n%s", name, got, want, strings.Join(r.chains[externalChain+hash(sp.Key, "")], "\n"))
						}
						// What one rule does for all origins must be the same for all.
						if diff := cmp.Diff(policy[0].From, route.From, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
							t.Fatalf("%s: clients that are let in differ by origin:\n%s", name, diff)
						}
						if f.Kind == proxy.ClusterIP && route.Scope != policy[0].Scope {
							t.Fatalf("%s: the scope differs by origin", name)
						}
						// A packet that stays with a frontend without endpoints has the same end whoever sent it.
						if len(route.To) == 0 && len(policy[proxy.Elsewhere].To) == 0 && route.Otherwise != policy[proxy.Elsewhere].Otherwise {
							t.Fatalf("%s: the end differs by origin", name)
						}
						if len(route.To) == 0 && len(policy[proxy.Elsewhere].To) > 0 {
							t.Fatalf("%s: goes nowhere though others do, and has no rule", name)
						}
					}
				}
			}
		}
	}
}

// dispatched returns the chain that a frontend leads to; empty if to none.
func dispatched(r *rendering, f proxy.Frontend) string {
	for _, rule := range r.dispatch {
		if strings.Contains(rule, fmt.Sprintf("--dport %d ", f.Addr.Port())) && !strings.HasSuffix(rule, "RETURN") {
			return rule[strings.LastIndex(rule, " ")+1:]
		}
	}
	return ""
}

// TestNodesThatMakeTheSameRules wants rows to be rendered anew only where a
// node's settings change what is rendered.
func TestNodesThatMakeTheSameRules(t *testing.T) {
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

// TestResetTCP wants rows of TCP without endpoints to be refused by resets where that
// is asked for, and no others.
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
				t.Errorf("%v, asked for: %t; resets: %t, want %t:\n%s", p, asked, got, want, text)
			}
		}
	}
}
