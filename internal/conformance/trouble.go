package conformance

import (
	"context"
	"errors"
)

// Trouble is what may befall the way by which a daemon hears of objects. It begins
// before they change, and ends after that.
type Trouble struct {
	Name       string
	Begin, End func(context.Context) error
}

// trouble brings trouble to some phases.
func (m *maker) trouble(g *Group, kinds []Trouble) {
	for i := range g.Phases {
		if len(kinds) > 0 && m.IntN(4) == 3 {
			g.Phases[i].Trouble = &kinds[m.IntN(len(kinds))]
		}
	}
}

// String returns the trouble's name.
func (t *Trouble) String() string {
	if t == nil {
		return "none"
	}
	return t.Name
}

// during does something while there is trouble, if there is any.
func (t *Trouble) during(ctx context.Context, do func() error) error {
	if t == nil {
		return do()
	}
	return within(t.Name, errors.Join(t.Begin(ctx), do(), t.End(ctx)))
}
