package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutation is a mistake in one place.
type mutation struct {
	name string // the mode or package, and what goes wrong
	kind kind
	file string
	old  string // occurs exactly once in the file
	new  string

	packages []string // whose tests may notice, those first that are most likely to
}

// kind is what a mutation does.
type kind string

const (
	swapsVerdict  kind = "swaps a verdict"
	dropsRule     kind = "drops a rule"
	wrongRule     kind = "a wrong rule"
	losesEndpoint kind = "forgets an endpoint"
	skipsRemoval  kind = "skips a removal"
	losesEvent    kind = "loses an event"
	wrongList     kind = "uses the wrong list"
	wrongSource   kind = "masquerades wrongly"
	wrongOrder    kind = "writes in the wrong order"
	wrongReport   kind = "reports wrongly"
)

// mutations returns all mutations.
func mutations() []mutation {
	var all []mutation
	for _, some := range [][]mutation{ofRules, ofIPVS, ofUserspace, ofSockets, ofWindows, ofPolicy, ofObjects, ofEngine} {
		all = append(all, some...)
	}
	return all
}

// check returns an error for each mutation that cannot be made in a tree.
func check(root string, all []mutation) (err error) {
	for _, m := range all {
		_, cannot := m.apply(root)
		err = errors.Join(err, cannot)
		for _, p := range m.packages {
			if _, missing := os.Stat(filepath.Join(root, p)); missing != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", m.name, missing))
			}
		}
	}
	return err
}

// apply returns the changed file.
func (m mutation) apply(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", fmt.Errorf("%s: %w", m.name, err)
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s: %s has %d times, not once: %s", m.name, m.file, n, m.old)
	}
	return strings.Replace(string(text), m.old, m.new, 1), nil
}

// overlay writes the changed file and the go command's description of it, and returns the name of
// the latter.
func (m mutation) overlay(root, scratch string) (string, error) {
	changed, err := m.apply(root)
	if err != nil {
		return "", err
	}
	file, description := filepath.Join(scratch, filepath.Base(m.file)), filepath.Join(scratch, "overlay.json")
	text, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.file): file}})
	return description, errors.Join(err, os.WriteFile(file, []byte(changed), 0o644), os.WriteFile(description, text, 0o644))
}
