package conformance

import (
	"fmt"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// resolver returns a resolver that was told the whole world at once.
func (w *World) resolver(mode string) (*resolve.Resolver, error) {
	r, err := w.bare(mode)
	if err != nil {
		return nil, err
	}
	r.UpdateNode(node(w.NodeLabels))
	r.UpdateServiceCIDR(nil, serviceCIDR(w.ranges()))
	for _, s := range w.Services {
		r.Services.Update(nil, s.object())
	}
	for _, s := range w.Slices {
		r.Endpoints.Update(s.object(), false)
	}
	r.Update()
	return r, nil
}

// bare returns a resolver that knows the node, but none of its labels, and
// nothing else.
func (w *World) bare(mode string) (*resolve.Resolver, error) {
	s, err := w.Config.settings(mode)
	if err != nil {
		return nil, err
	}
	r := resolve.New(s)
	r.UpdateNode(node(nil))
	r.Update()
	return r, nil
}

// worlds returns a group's world in each of its phases, in order.
func (g *Group) worlds() ([]*World, error) {
	var out []*World
	w := &g.World
	for _, p := range g.Phases {
		next, err := w.after(p)
		if err != nil {
			return nil, err
		}
		out = append(out, next)
		w = next
	}
	return out, nil
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
	worlds, err := g.worlds()
	if err != nil {
		return []Failure{{Group: g.ID, How: "oracle", Got: err.Error()}}
	}
	var out []Failure
	for i, p := range g.Phases {
		r, err := worlds[i].resolver(oracleMode)
		if err != nil {
			return append(out, Failure{Group: g.ID, How: "oracle", Got: err.Error()})
		}
		for _, c := range g.in(p, oracleMode) {
			if got := answer(r.State(), c); !got.equal(c.in(oracleMode)) {
				out = append(out, Failure{
					Group: g.ID, Case: c.ID, How: "oracle",
					Want: c.in(oracleMode).String(), Got: got.String(),
				})
			}
		}
	}
	return out
}

// answer is the oracle's answer to a case.
func answer(s *proxy.State, c *Case) Expect { return expectation(s.Outcome(packet(c))) }
