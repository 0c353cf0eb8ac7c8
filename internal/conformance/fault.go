package conformance

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Fault is what may befall the way by which a daemon hears of objects. It begins
// before they change, and ends after that.
type Fault struct {
	Name        string
	Start, Stop func(context.Context) error
}

// addFaults brings trouble to some phases. A Service is deleted meanwhile, as that is
// what is easiest to miss. Low numbers are drawn most, so kinds take turns.
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

// String returns the trouble's name.
func (t *Fault) String() string {
	if t == nil {
		return "none"
	}
	return t.Name
}

// during does something while there is trouble, if there is any.
func (t *Fault) during(ctx context.Context, do func() error) error {
	if t == nil {
		return do()
	}
	return wrap(t.Name, errors.Join(t.Start(ctx), do(), t.Stop(ctx)))
}
