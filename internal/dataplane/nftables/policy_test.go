package nftables

import (
	"fmt"
	"slices"
	"testing"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// treatment is what the rules do to a packet.
type treatment struct {
	chain  string // of the class it comes to, without masquerading
	marked bool
	end    uint32 // what becomes of it otherwise
}

// walker evaluates the constant chains, whose rules it knows by their purpose, and the objects
// of one frontend.
type walker struct {
	t      *table
	chains map[string]*chain
	front  *renderedFrontend
	class  map[uint32]class
}

func (w *walker) data(s *nft.Set) (string, bool) {
	for _, x := range w.front.objects {
		if x.set == s {
			return x.data, true
		}
	}
	return "", false
}

func (w *walker) number(s *nft.Set) uint32 {
	data, _ := w.data(s)
	n, _ := parseHostWord(data)
	return n
}

// marks reports whether a chain marks packets of an origin.
func (w *walker) marks(name string, from proxy.Origin) bool {
	for _, r := range w.chains[name].rules {
		if r.Comment == "our pods" {
			if from == proxy.OurPod {
				return false
			}
			continue
		}
		return true
	}
	return false
}

func (w *walker) walk(from proxy.Origin) (got treatment) {
	m := w.front.maps
	to := w.number(m.dispatch)
	if to == split {
		if to = w.number(m.locals); from != proxy.Elsewhere {
			to = w.number(m.external)
			got.marked = w.marks(markNode, from)
		}
	}
	c := w.class[to&^clusterIPFlag]
	got.marked = got.marked || c.masquerade || to&clusterIPFlag != 0 && w.marks(markClusterIP, from)
	c.masquerade = false
	if got.chain = c.target(); got.chain == "" {
		got.end = w.number(m.noEndpoints)
	}
	return got
}

// newWalker returns a walker for the constant chains of a node.
func newWalker(tab *table, node *proxy.Node) *walker {
	w := &walker{t: tab, chains: map[string]*chain{}, class: map[uint32]class{}}
	for _, c := range tab.constantChains(node, nil, localnet.Guard{}) {
		w.chains[c.Name] = c
	}
	return w
}

// check compares what happens to a row's packets with its policy.
func (w *walker) check(t *testing.T, what string, sp *proxy.ServicePort, form *renderedRow, node *proxy.Node) {
	t.Helper()
	for c, n := range w.t.classes.numbers {
		w.class[n] = c
	}
	for i, f := range sp.Frontends {
		w.front = &form.frontends[i]
		for origin, route := range sp.Policy(f.Kind, node) {
			if proxy.Origin(origin) == proxy.OurPod && len(w.t.ourPods(node, (*rule).returns)) == 0 {
				continue // no packet is a pod's
			}
			name := fmt.Sprintf("%s, %v, %+v: %s %v from %v", what, w.t.family, node, sp.Key.Name, f.Kind, proxy.Origin(origin))
			if got, want := w.walk(proxy.Origin(origin)), w.want(sp, f, route); !want.same(got) {
				t.Fatalf("%s: %+v; want %+v", name, got, want)
			}
			if _, restricted := w.data(w.t.restricted); restricted != (route.From != nil) {
				t.Fatalf("%s: restricted is %t", name, restricted)
			}
		}
	}
}

// TestPolicyTable checks that a row's elements and the constant chains together implement
// ServicePort.Policy for every kind of frontend, origin and setting of the node.
func TestPolicyTable(t *testing.T) {
	for _, family := range proxy.Families {
		d := Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14, Families: []proxy.Family{family}})
		tab := d.tables[0]
		for _, node := range proxytest.PolicyNodes() {
			w := newWalker(tab, node)
			for _, sp := range proxytest.PolicyRows(family) {
				form, err := tab.renderRow(differ.Row{ServicePort: sp, Node: node})
				if err != nil {
					t.Fatal(err)
				}
				w.check(t, "alone", sp, &form, node)
			}
		}
	}
}

// want returns the treatment that a route requires.
func (w *walker) want(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) treatment {
	if len(r.To) > 0 {
		c := class{nodePort: f.Kind == proxy.NodePort, scope: r.Scope, count: len(r.To), taken: w.t.taken(sp, f, r)}
		return treatment{chain: c.chain(), marked: r.Masquerade}
	}
	if r.Otherwise == proxy.Drop {
		return treatment{end: dropped}
	}
	return treatment{end: rejected}
}

// same compares two treatments, except for the mark of a packet that is not sent anywhere.
func (want treatment) same(got treatment) bool {
	return got.chain == want.chain && got.end == want.end && (got.chain == "" || got.marked == want.marked)
}

// TestRowsDoNotDependOnTheNode checks that a row has the same elements on every node, so that
// a change of the node rewrites only constant chains.
func TestRowsDoNotDependOnTheNode(t *testing.T) {
	d := Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14})
	nodes := proxytest.PolicyNodes()
	for _, tab := range d.tables {
		for _, sp := range proxytest.PolicyRows(tab.family) {
			want, err := tab.renderRow(differ.Row{ServicePort: sp, Node: nodes[0]})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes[1:] {
				got, err := tab.renderRow(differ.Row{ServicePort: sp, Node: n})
				if err != nil {
					t.Fatal(err)
				}
				for i := range want.frontends {
					if !slices.EqualFunc(got.frontends[i].objects, want.frontends[i].objects, sameObject) {
						t.Fatalf("row %s, %v: other elements on node %+v", sp.Key.Name, sp.Frontends[i].Kind, n)
					}
				}
			}
		}
	}
}
