package conformance

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// nothing returns a resolver that knows the node, but none of its labels, and
// nothing else.
func (w *World) nothing(mode string) *resolve.Resolver {
	s, err := w.Config.settings(mode)
	if err != nil {
		panic(err) // complete has looked
	}
	r := resolve.New(s)
	r.UpdateNode(node(nil))
	r.Update()
	return r
}

// resolver returns a resolver that was told the whole world at once.
func (w *World) resolver(mode string) *resolve.Resolver {
	r := w.nothing(mode)
	r.UpdateNode(node(w.NodeLabels))
	r.UpdateServiceCIDR(nil, w.ranges())
	for _, s := range w.Services {
		r.Services.Update(nil, s)
	}
	for _, s := range w.Slices {
		r.Endpoints.Update(s, false)
	}
	r.Update()
	return r
}

// after returns the world as a phase leaves it.
func (w *World) after(p Phase) *World {
	next := *w
	if p.NodeLabels != nil {
		next.NodeLabels = p.NodeLabels
	}
	next.Services = slices.DeleteFunc(slices.Clone(w.Services), func(s *v1.Service) bool {
		return p.DeleteServices.has(key(s))
	})
	next.Slices = slices.DeleteFunc(slices.Clone(w.Slices), func(s *discoveryv1.EndpointSlice) bool {
		return p.DeleteSlices.has(s.Name)
	})
	next.Services = replace(next.Services, p.Services)
	next.Slices = replace(next.Slices, p.Slices)
	return &next
}

// key is an object's namespace and name.
func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// replace puts objects in the places of those with their names, or at the end.
func replace[T metav1.Object](list, by []T) []T {
	for _, o := range by {
		i := slices.IndexFunc(list, func(x T) bool { return key(x) == key(o) })
		if i < 0 {
			list = append(list, o)
		} else {
			list[i] = o
		}
	}
	return list
}

// worlds returns a group's world in each of its phases, in order.
func (g *Group) worlds() []*World {
	var out []*World
	w := &g.World
	for _, p := range g.Phases {
		w = w.after(p)
		out = append(out, w)
	}
	return out
}

// in returns the cases of a phase that apply to a mode.
func (g *Group) in(p Phase, mode string) []*Case {
	var out []*Case
	for _, c := range g.Cases {
		if c.Phase == p.Name && c.plays(mode) {
			out = append(out, c)
		}
	}
	return out
}

// names returns the names of the cases that apply to a mode.
func (g *Group) names(mode string) []string {
	var out []string
	for _, c := range g.Cases {
		if c.plays(mode) {
			out = append(out, c.ID)
		}
	}
	return out
}

// Failure is a case that did not come out as expected, or, without a case, a
// group that could not be played.
type Failure struct {
	Group, Case string
	How         string // which of the ways
	Want        string
	Got         string
	Oracle      string // what the oracle says, where it was asked
	Skip        bool   // it could not be tried; Got says why
}

// String returns the failure in a few lines.
func (f Failure) String() string {
	text := fmt.Sprintf("%s: %s", f.How, f.Got)
	if f.Want != "" {
		text += "\n\twant:   " + f.Want
	}
	if f.Oracle != "" {
		text += "\n\toracle: " + f.Oracle
	}
	return text
}

// oracle asks the oracle for every case of a group.
func (g *Group) oracle() []Failure {
	var out []Failure
	for i, w := range g.worlds() {
		state := w.resolver(oracleMode).State()
		for _, c := range g.in(g.Phases[i], oracleMode) {
			if want, got := c.in(oracleMode), answer(state, c); !got.equal(want) {
				out = append(out, Failure{Group: g.ID, Case: c.ID, How: "oracle", Want: want.String(), Got: got.String()})
			}
		}
	}
	return out
}

// answer is the oracle's answer to a case, in the table's form.
func answer(s *proxy.State, c *Case) Expect {
	o := s.Outcome(packet(c))
	e := Expect{Verdict: o.Verdict}
	for _, b := range o.Backends {
		e.add(b.Addr, b.Masquerade)
	}
	return e
}
