package ipttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"sluice/internal/kernel/ipt"
)

// Fake keeps tables in memory. It executes the commands -A, -I, -D, -F, -N and -X
// on rules in the format of iptables-save, refuses what the programs refuse, and
// counts operations.
type Fake struct {
	mu     sync.Mutex
	tables map[string]*fakeTable
	fail   error
	count  Count
	stamp  uint32            // how many tables were committed
	lack   string            // rules that contain this are refused
	lines  bool              // the error of such a refusal has the line of the rule, not of COMMIT
	counts map[string]uint64 // packets, by comment
	parsed map[string]*rule  // rules that were evaluated, by text
}

// Count is how often the methods of a Fake were called.
type Count struct {
	Saves    int
	Looks    int // calls of Uses
	Restores int
	Lines    int // in all restores
	Searched int // rules that were compared to find those to delete
}

type fakeTable struct {
	policy map[string]string
	rules  map[string][]string
	made   map[string]int // the order in which chains were created
	next   int
	count  *Count

	// During a restore: what chains were before, and how many rules jump to each
	// chain; users is nil if that must be counted.
	before map[string]*fakeChain
	users  map[string]int
}

// fakeChain is an earlier version of a chain; nil if it did not exist.
type fakeChain struct {
	policy string
	rules  []string
	made   int
}

// NewFake returns a Fake without tables.
func NewFake() *Fake {
	return &Fake{tables: map[string]*fakeTable{}, counts: map[string]uint64{}, parsed: map[string]*rule{}}
}

// Fail makes every call fail with err, until Fail is called with nil.
func (k *Fake) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// Lack makes the fake refuse rules that contain a text, like a kernel that lacks a
// match. The error names the line of COMMIT, as with the legacy variant.
func (k *Fake) Lack(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lack = text
}

// LackLine is like Lack, but the error names the line of the rule, as with the nft
// variant.
func (k *Fake) LackLine(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lack, k.lines = text, true
}

// Count sets how many packets the rules with a comment have matched.
func (k *Fake) Count(comment string, packets uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[comment] = packets
}

// Reset returns the counts since the last Reset.
func (k *Fake) Reset() Count {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.count
	k.count = Count{}
	return c
}

// Save returns the tables, sorted by name.
func (k *Fake) Save(ctx context.Context) ([]ipt.Table, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Saves++
	if err := errors.Join(ctx.Err(), k.fail); err != nil {
		return nil, err
	}
	return k.saved(), nil
}

func (k *Fake) saved() []ipt.Table {
	var tables []ipt.Table
	for _, name := range slices.Sorted(maps.Keys(k.tables)) {
		t := ipt.Table{Name: name}
		for _, c := range k.tables[name].order() {
			t.Chains = append(t.Chains, ipt.Chain{
				Name: c, Policy: k.tables[name].policy[c], Rules: slices.Clone(k.tables[name].rules[c]),
			})
		}
		tables = append(tables, t)
	}
	return tables
}

// Uses counts the uses of chains.
func (k *Fake) Uses(ctx context.Context) (ipt.Uses, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Looks++
	if err := errors.Join(ctx.Err(), k.fail); err != nil {
		return nil, err
	}
	return ipt.UsesOf(k.saved()), nil
}

// Packets returns what Count has set for the comment, if the chain has such a rule.
func (k *Fake) Packets(ctx context.Context, table, chain, comment string) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.tables[table]; t != nil && slices.ContainsFunc(t.rules[chain], func(r string) bool { return strings.Contains(r, comment) }) {
		return k.counts[comment], errors.Join(ctx.Err(), k.fail)
	}
	return 0, errors.Join(ctx.Err(), k.fail)
}

// Counters calls f for every rule, with what Count has set for its comment.
func (k *Fake) Counters(ctx context.Context, table string, f func(chain, rule string, packets uint64)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.tables[table]; t != nil {
		for chain, rules := range t.rules {
			for _, r := range rules {
				var packets uint64
				for comment, n := range k.counts {
					if strings.Contains(r, comment) {
						packets = n
					}
				}
				f(chain, r, packets)
			}
		}
	}
	return errors.Join(ctx.Err(), k.fail)
}

// Stamp returns how many tables were committed.
func (k *Fake) Stamp(ctx context.Context, _ bool) (ipt.Stamp, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return ipt.Stamp{Generation: k.stamp}, errors.Join(ctx.Err(), k.fail)
}

// Restore executes the lines.
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
			err = errors.New("no table is open")
		case text == "COMMIT":
			if err = table.check(k.lack); err == nil {
				table.before, table.users = nil, nil
				k.tables[name], table = table, nil
				k.stamp++
			}
		case k.lines && strings.Contains(text, k.lack):
			err = fmt.Errorf("the kernel lacks %q", k.lack)
		default:
			err = table.line(text)
		}
		k.count.Lines++
		if err != nil {
			table.undo()
			return &ipt.RestoreError{Line: number, Text: text, Err: err}
		}
	}
	if table != nil {
		table.undo()
		return &ipt.RestoreError{Line: number + 1, Err: errors.New("COMMIT expected")}
	}
	return nil
}

// begin returns a table for a restore to change. It creates the table if needed.
func (k *Fake) begin(name string) (*fakeTable, error) {
	if t, ok := k.tables[name]; ok {
		t.before = map[string]*fakeChain{}
		return t, nil
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
	t := &fakeTable{policy: map[string]string{}, rules: map[string][]string{}, made: map[string]int{}, before: map[string]*fakeChain{}, count: &k.count}
	for _, c := range order {
		t.add(c)
		t.policy[c] = "ACCEPT"
	}
	return t, nil
}

// order returns the chains in the order in which they were created.
func (t *fakeTable) order() []string {
	return slices.SortedFunc(maps.Keys(t.made), func(a, b string) int { return t.made[a] - t.made[b] })
}

func (t *fakeTable) add(chain string) {
	t.rules[chain], t.made[chain] = nil, t.next
	t.next++
}

// touch remembers a chain before it changes.
func (t *fakeTable) touch(chain string) {
	t.users = nil
	if _, ok := t.before[chain]; ok {
		return
	}
	rules, ok := t.rules[chain]
	if !ok {
		t.before[chain] = nil
		return
	}
	t.before[chain] = &fakeChain{t.policy[chain], slices.Clone(rules), t.made[chain]}
}

// undo reverts all changes since begin.
func (t *fakeTable) undo() {
	if t == nil {
		return
	}
	for chain, was := range t.before {
		if was == nil {
			t.drop(chain)
			continue
		}
		t.rules[chain], t.made[chain] = was.rules, was.made
		if was.policy != "" {
			t.policy[chain] = was.policy
		}
	}
	t.before, t.users = nil, nil
}

func (t *fakeTable) drop(chain string) {
	delete(t.rules, chain)
	delete(t.made, chain)
}

// line executes one command.
func (t *fakeTable) line(text string) error {
	if text[0] == ':' {
		return t.declare(text)
	}
	command, rest, _ := strings.Cut(text, " ")
	chain, rule, _ := strings.Cut(rest, " ")
	rules, ok := t.rules[chain]
	if ok == (command == "-N") {
		return fmt.Errorf("chain %q exists already or does not exist", chain)
	}
	if command != "-X" {
		t.touch(chain)
	}
	switch command {
	case "-N":
		t.add(chain)
	case "-A":
		t.rules[chain] = append(rules, rule)
	case "-I":
		t.rules[chain] = slices.Insert(rules, 0, rule)
	case "-D":
		i := slices.Index(rules, rule)
		if i < 0 {
			return fmt.Errorf("no such rule in chain %q", chain)
		}
		t.count.Searched += i + 1
		t.rules[chain] = slices.Delete(rules, i, i+1)
	case "-F":
		t.rules[chain] = nil
	case "-X":
		return t.remove(chain)
	default:
		return fmt.Errorf("command %q is not supported", command)
	}
	return nil
}

// declare creates or flushes a chain. A built-in chain gets the policy and keeps its
// rules.
func (t *fakeTable) declare(text string) error {
	fields := strings.Fields(text[1:])
	if len(fields) != 2 && len(fields) != 3 {
		return errors.New("a declaration of a chain has a name, a policy and counters")
	}
	name, policy := fields[0], strings.TrimPrefix(fields[1], "-")
	t.touch(name)
	if t.policy[name] != "" {
		if policy != "" {
			t.policy[name] = policy
		}
		return nil
	}
	if policy != "" {
		return fmt.Errorf("chain %q is not built in and cannot have a policy", name)
	}
	if _, ok := t.rules[name]; !ok {
		t.add(name)
	}
	t.rules[name] = nil
	return nil
}

// remove deletes an empty chain that no rule jumps to.
func (t *fakeTable) remove(name string) error {
	if t.policy[name] != "" || len(t.rules[name]) > 0 {
		return fmt.Errorf("chain %q is built in or not empty", name)
	}
	if t.users == nil {
		t.users = map[string]int{}
		for _, rules := range t.rules {
			for _, r := range rules {
				t.users[ipt.Target(r)]++
			}
		}
	}
	if t.users[name] > 0 {
		return fmt.Errorf("chain %q is in use by %d rules", name, t.users[name])
	}
	users := t.users
	t.touch(name)
	t.drop(name)
	t.users = users // an empty chain has no jumps
	return nil
}

// check returns an error if a rule jumps to a chain that does not exist, or contains
// the text of Lack. Targets without options look like chains.
func (t *fakeTable) check(lack string) error {
	targets := []string{"", "ACCEPT", "DROP", "RETURN", "REJECT", "MASQUERADE", "LOG", "NOTRACK", "TRACE"}
	for chain := range t.before {
		for _, r := range t.rules[chain] {
			if lack != "" && strings.Contains(r, lack) {
				return fmt.Errorf("the kernel lacks %q", lack)
			}
			if _, ok := t.rules[ipt.Target(r)]; !ok && !slices.Contains(targets, ipt.Target(r)) {
				return fmt.Errorf("chain %q jumps to %q, which does not exist", chain, ipt.Target(r))
			}
		}
	}
	return nil
}
