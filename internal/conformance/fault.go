package conformance

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Fault is a fault of the source of objects. It starts before the objects change and stops after
// that.
type Fault struct {
	Name        string
	Start, Stop func(context.Context) error
}

// addFaults adds faults to some phases, and deletes a Service during each, because deletions are
// the easiest to miss. The generator prefers low numbers, so the kinds rotate by phase.
func (m *generator) addFaults(g *Group, kinds []Fault) {
	w := &g.World
	for i := range g.Phases {
		p := &g.Phases[i]
		if len(kinds) > 0 && m.IntN(2) == 1 {
			p.Fault = &kinds[(i+m.IntN(len(kinds)))%len(kinds)]
			if n := len(w.Services); n > 0 {
				gone := key(w.Services[m.IntN(n)])
				p.DeleteServices = append(p.DeleteServices, gone)
				p.Services = slices.DeleteFunc(p.Services, func(s *v1.Service) bool { return key(s) == gone })
			}
		}
		w = w.after(*p)
	}
}

// String returns the name of the fault.
func (t *Fault) String() string {
	if t == nil {
		return "none"
	}
	return t.Name
}

// during calls do between Start and Stop. A nil Fault just calls do.
func (t *Fault) during(ctx context.Context, do func() error) error {
	if t == nil {
		return do()
	}
	return wrap(t.Name, errors.Join(t.Start(ctx), do(), t.Stop(ctx)))
}
