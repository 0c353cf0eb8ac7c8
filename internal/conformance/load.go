package conformance

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"sigs.k8s.io/yaml"

	"sluice/internal/proxy"
)

//go:embed cases/*.yaml
var files embed.FS

// load reads the whole table. Every word in it that nobody understands is an
// error, as a misspelt case would prove nothing.
func load() (*table, error) {
	all := &table{}
	names, err := fs.Glob(files, "cases/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		t, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all.Groups = append(all.Groups, t.Groups...)
		all.Stateful = append(all.Stateful, t.Stateful...)
	}
	all.Groups = append(all.Groups, decisionTables()...)
	return all, all.complete()
}

// parse reads one file.
func parse(text []byte) (*table, error) {
	t := &table{}
	if err := yaml.UnmarshalStrict(text, t); err != nil {
		return nil, err
	}
	return t, nil
}

// complete fills in defaults and finds what is wrong with the table itself.
func (t *table) complete() error {
	var errs []error
	var ids []string
	for _, g := range t.Groups {
		ids = append(ids, g.ID)
		if err := g.complete(); err != nil {
			errs = append(errs, fmt.Errorf("group %s: %w", g.ID, err))
		}
	}
	for _, s := range t.Stateful {
		ids = append(ids, s.ID)
		if err := s.complete(); err != nil {
			errs = append(errs, fmt.Errorf("story %s: %w", s.ID, err))
		}
	}
	return errors.Join(append(errs, distinct(ids))...)
}

// distinct finds the first id that is empty or there twice.
func distinct(ids []string) error {
	seen := map[string]bool{"": true}
	for _, id := range ids {
		if seen[id] {
			return fmt.Errorf("id %q is empty or used twice", id)
		}
		seen[id] = true
	}
	return nil
}

// initial is the phase that every group begins with.
const initial = "initial"

func (g *Group) complete() error {
	if err := g.named(); err != nil {
		return err
	}
	if len(g.Phases) == 0 || g.Phases[0].Name != initial {
		g.Phases = append([]Phase{{Name: initial}}, g.Phases...)
	}
	if len(g.Cases) == 0 {
		return errors.New("no cases")
	}
	var ids []string
	for _, c := range g.Cases {
		ids = append(ids, c.ID)
		if err := c.complete(g); err != nil {
			return fmt.Errorf("case %s: %w", c.ID, err)
		}
	}
	return distinct(ids)
}

func (c *Case) complete(g *Group) error {
	if c.Phase == "" {
		c.Phase = initial
	}
	if !slices.ContainsFunc(g.Phases, func(p Phase) bool { return p.Name == c.Phase }) {
		return fmt.Errorf("phase %q is not one of the group's", c.Phase)
	}
	if c.Modes == nil {
		c.Modes = g.Modes
	}
	return c.from()
}

// from fills in the source.
func (c *Case) from() error {
	if !c.Dst.IsValid() || c.DPort == 0 {
		return errors.New("dst or dport is missing")
	}
	if c.Src.IsValid() {
		return nil
	}
	var err error
	c.Src, err = client(c.From, proxy.FamilyOf(c.Dst))
	return err
}

// plays reports whether a case applies to a mode.
func (c *Case) plays(mode string) bool { return c.Modes == nil || slices.Contains(c.Modes, mode) }
