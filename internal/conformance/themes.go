package conformance

import (
	"io/fs"
	"path"
	"strings"
)

// Theme is a part of the table: a file of cases, or the crossed decision tables.
type Theme struct {
	Name    string
	Cases   int // packets that are played
	Stories int // sequences of steps
}

// Themes returns how many cases of each theme are played in a mode.
func Themes(mode string) ([]Theme, error) {
	names, err := fs.Glob(files, "cases/*.yaml")
	if err != nil {
		return nil, err
	}
	var out []Theme
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		t, err := parse(text)
		if err != nil {
			return nil, err
		}
		if err := t.complete(); err != nil {
			return nil, err
		}
		out = append(out, t.theme(strings.TrimSuffix(path.Base(name), ".yaml"), mode))
	}
	crossed := &table{Groups: decisionTables()}
	if err := crossed.complete(); err != nil {
		return nil, err
	}
	return append(out, crossed.theme("decision tables, crossed", mode)), nil
}

func (t *table) theme(name, mode string) Theme {
	th := Theme{Name: name, Stories: len(t.Stateful)}
	for _, g := range t.Groups {
		for _, c := range g.Cases {
			if c.plays(mode) {
				th.Cases++
			}
		}
	}
	return th
}
