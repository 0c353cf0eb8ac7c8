package ipt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Fake is tables in memory. It knows the commands -A, -I, -D, -F, -N and -X
// with rules written as iptables-save writes them, refuses what the programs
// refuse, and counts.
type Fake struct {
	mu     sync.Mutex
	tables map[string]*fakeTable
	fail   error
	count  Count
}

// Count is what was asked of a Fake.
type Count struct {
	Saves    int
	Restores int
	Lines    int // in all restores
}

type fakeTable struct {
	order  []string // of the chains
	policy map[string]string
	rules  map[string][]string
}

var _ Interface = (*Fake)(nil)

// NewFake returns tables nobody has used yet.
func NewFake() *Fake { return &Fake{tables: map[string]*fakeTable{}} }

// Fail makes every call end with an error, until it is nil.
func (k *Fake) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// Reset returns what was asked since the last Reset.
func (k *Fake) Reset() Count {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.count
	k.count = Count{}
	return c
}

// Save returns the tables by name.
func (k *Fake) Save(ctx context.Context) ([]Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Saves++
	if err := errors.Join(ctx.Err(), k.fail); err != nil {
		return nil, err
	}
	var tables []Table
	for _, name := range slices.Sorted(maps.Keys(k.tables)) {
		t := Table{Name: name}
		for _, c := range k.tables[name].order {
			t.Chains = append(t.Chains, Chain{c, k.tables[name].policy[c], slices.Clone(k.tables[name].rules[c])})
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// Restore carries out the lines.
func (k *Fake) Restore(ctx context.Context, input []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Restores++
	if err := errors.Join(ctx.Err(), k.fail); err != nil {
		return err
	}
	var name string
	var table *fakeTable
	number := 0
	for line := range bytes.Lines(input) {
		number++
		text := strings.TrimSpace(string(line))
		var err error
		switch {
		case text == "" || text[0] == '#':
			continue
		case text[0] == '*' && table == nil:
			name = text[1:]
			table, err = k.begin(name)
		case table == nil:
			err = errors.New("no table is named")
		case text == "COMMIT":
			if err = table.check(); err == nil {
				k.tables[name], table = table, nil
			}
		default:
			err = table.line(text)
		}
		k.count.Lines++
		if err != nil {
			return &RestoreError{Line: number, Text: text, Err: err}
		}
	}
	if table != nil {
		return &RestoreError{Line: number + 1, Err: errors.New("COMMIT expected")}
	}
	return nil
}

// begin returns a copy of a table to work on.
func (k *Fake) begin(name string) (*fakeTable, error) {
	if t, ok := k.tables[name]; ok {
		c := &fakeTable{slices.Clone(t.order), maps.Clone(t.policy), maps.Clone(t.rules)}
		for chain, rules := range c.rules {
			c.rules[chain] = slices.Clone(rules)
		}
		return c, nil
	}
	builtin := map[string]string{
		"filter":   "INPUT FORWARD OUTPUT",
		"nat":      "PREROUTING INPUT OUTPUT POSTROUTING",
		"mangle":   "PREROUTING INPUT FORWARD OUTPUT POSTROUTING",
		"raw":      "PREROUTING OUTPUT",
		"security": "INPUT FORWARD OUTPUT",
	}
	order := strings.Fields(builtin[name])
	if len(order) == 0 {
		return nil, fmt.Errorf("no table %q", name)
	}
	t := &fakeTable{order, map[string]string{}, map[string][]string{}}
	for _, c := range order {
		t.policy[c], t.rules[c] = "ACCEPT", nil
	}
	return t, nil
}

// line carries out one command.
func (t *fakeTable) line(text string) error {
	if text[0] == ':' {
		return t.declare(text)
	}
	command, rest, _ := strings.Cut(text, " ")
	chain, rule, _ := strings.Cut(rest, " ")
	rules, ok := t.rules[chain]
	if ok == (command == "-N") {
		return fmt.Errorf("chain %q: exists already or not at all", chain)
	}
	switch command {
	case "-N":
		t.order = append(t.order, chain)
		t.rules[chain] = nil
	case "-A":
		t.rules[chain] = append(rules, rule)
	case "-I":
		t.rules[chain] = slices.Insert(rules, 0, rule)
	case "-D":
		i := slices.Index(rules, rule)
		if i < 0 {
			return fmt.Errorf("no such rule in chain %q", chain)
		}
		t.rules[chain] = slices.Delete(rules, i, i+1)
	case "-F":
		t.rules[chain] = nil
	case "-X":
		return t.remove(chain)
	default:
		return fmt.Errorf("command %q is not known here", command)
	}
	return nil
}

// declare makes a chain, or empties it; built-in ones get a policy and keep
// their rules.
func (t *fakeTable) declare(text string) error {
	name, policy, ok := parseChain(text)
	if !ok {
		return errors.New("a chain line has a name, a policy and counters")
	}
	if t.policy[name] != "" {
		if policy != "" {
			t.policy[name] = policy
		}
		return nil
	}
	if policy != "" {
		return fmt.Errorf("chain %q is not built in and has no policy", name)
	}
	if _, ok := t.rules[name]; !ok {
		t.order = append(t.order, name)
	}
	t.rules[name] = nil
	return nil
}

// remove removes an empty chain that nothing goes to.
func (t *fakeTable) remove(name string) error {
	if t.policy[name] != "" || len(t.rules[name]) > 0 {
		return fmt.Errorf("chain %q is built in or not empty", name)
	}
	for chain, rules := range t.rules {
		if slices.ContainsFunc(rules, func(r string) bool { return Target(r) == name }) {
			return fmt.Errorf("chain %q is in use by chain %q", name, chain)
		}
	}
	delete(t.rules, name)
	t.order = slices.DeleteFunc(t.order, func(c string) bool { return c == name })
	return nil
}

// check refuses rules that go to chains that are not there. Targets that need
// no options are written like chains.
func (t *fakeTable) check() error {
	targets := []string{"", "ACCEPT", "DROP", "RETURN", "REJECT", "MASQUERADE", "LOG", "NOTRACK", "TRACE"}
	for chain, rules := range t.rules {
		for _, r := range rules {
			if _, ok := t.rules[Target(r)]; !ok && !slices.Contains(targets, Target(r)) {
				return fmt.Errorf("chain %q goes to %q, which is not there", chain, Target(r))
			}
		}
	}
	return nil
}
