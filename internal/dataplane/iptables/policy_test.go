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

// walk evaluates a chain that distinguishes origins for a packet of one origin. It returns
// whether the packet is marked and the chain it jumps to.
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

// TestPolicyTable checks that the rules of every row do what its policy says, for every kind of
// frontend, origin and setting of the node.
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
						// A single rule implements this for all origins.
						if diff := cmp.Diff(policy[0].From, route.From, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
							t.Fatalf("%s: allowed clients differ by origin:\n%s", name, diff)
						}
						if f.Kind == proxy.ClusterIP && route.Scope != policy[0].Scope {
							t.Fatalf("%s: the scope differs by origin", name)
						}
						// A packet to a frontend without endpoints has the same outcome for every origin.
						if len(route.To) == 0 && len(policy[proxy.Elsewhere].To) == 0 && route.Otherwise != policy[proxy.Elsewhere].Otherwise {
							t.Fatalf("%s: the outcome differs by origin", name)
						}
						if len(route.To) == 0 && len(policy[proxy.Elsewhere].To) > 0 {
							t.Fatalf("%s: has neither an endpoint, unlike other origins, nor a rule", name)
						}
					}
				}
			}
		}
	}
}

// dispatched returns the chain that a frontend's rule jumps to, or "" if there is none.
func dispatched(r *rendering, f proxy.Frontend) string {
	for _, rule := range r.dispatch {
		if strings.Contains(rule, fmt.Sprintf("--dport %d ", f.Addr.Port())) && !strings.HasSuffix(rule, "RETURN") {
			return rule[strings.LastIndex(rule, " ")+1:]
		}
	}
	return ""
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
