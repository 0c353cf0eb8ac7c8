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

// Fake is tables in memory. It knows the commands -A, -I, -D, -F, -N and -X
// with rules written as iptables-save writes them, refuses what the programs
// refuse, and counts.
type Fake struct {
	mu     sync.Mutex
	tables map[string]*fakeTable
	fail   error
	count  Count
	stamp  uint32 // counts what took effect
	lack   string // rules with this in them are refused
	lines  bool   // by their lines
	counts map[string]uint64
}

// Count is what was asked of a Fake.
type Count struct {
	Saves    int
	Looks    int // at what chains hold
	Restores int
	Lines    int // in all restores
	Searched int // rules that were looked at to find those to be deleted
}

type fakeTable struct {
	policy map[string]string
	rules  map[string][]string
	made   map[string]int // in which order chains were made
	next   int
	count  *Count

	// While lines are carried out: what chains were before, and how many rules
	// go to each, nil if that must be counted.
	before map[string]*fakeChain
	users  map[string]int
}

// fakeChain is what a chain was; nil if it was not there.
type fakeChain struct {
	policy string
	rules  []string
	made   int
}

// NewFake returns tables nobody has used yet.
func NewFake() *Fake { return &Fake{tables: map[string]*fakeTable{}, counts: map[string]uint64{}} }

// Fail makes every call end with an error, until it is nil.
func (k *Fake) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// Lack makes tables refuse rules that contain a text, like a kernel that lacks
// the match: they are refused by the table, not by the line.
func (k *Fake) Lack(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lack = text
}

// LackLine is Lack, but the line is named, as the nft variant does.
func (k *Fake) LackLine(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lack, k.lines = text, true
}

// Count makes rules with a comment have matched packets.
func (k *Fake) Count(comment string, packets uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[comment] = packets
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

// Uses counts.
func (k *Fake) Uses(ctx context.Context) (ipt.Uses, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Looks++
	if err := errors.Join(ctx.Err(), k.fail); err != nil {
		return nil, err
	}
	return ipt.UsesOf(k.saved()), nil
}

// Packets returns what Count was told of rules that are there.
func (k *Fake) Packets(ctx context.Context, table, chain, comment string) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.tables[table]; t != nil && slices.ContainsFunc(t.rules[chain], func(r string) bool { return strings.Contains(r, comment) }) {
		return k.counts[comment], errors.Join(ctx.Err(), k.fail)
	}
	return 0, errors.Join(ctx.Err(), k.fail)
}

// Counters calls f with what Count was told, by comments.
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

// Stamp counts restored tables.
func (k *Fake) Stamp(ctx context.Context, _ bool) (ipt.Stamp, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return ipt.Stamp{Generation: k.stamp}, errors.Join(ctx.Err(), k.fail)
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

// begin returns a table to work on.
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

// order returns the chains as they were made.
func (t *fakeTable) order() []string {
	return slices.SortedFunc(maps.Keys(t.made), func(a, b string) int { return t.made[a] - t.made[b] })
}

func (t *fakeTable) add(chain string) {
	t.rules[chain], t.made[chain] = nil, t.next
	t.next++
}

// touch remembers what a chain was, before it changes.
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

// undo takes back everything since the table was begun.
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
		return fmt.Errorf("command %q is not known here", command)
	}
	return nil
}

// declare makes a chain, or empties it; built-in ones get a policy and keep
// their rules.
func (t *fakeTable) declare(text string) error {
	fields := strings.Fields(text[1:])
	if len(fields) != 2 && len(fields) != 3 {
		return errors.New("a chain line has a name, a policy and counters")
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
		return fmt.Errorf("chain %q is not built in and has no policy", name)
	}
	if _, ok := t.rules[name]; !ok {
		t.add(name)
	}
	t.rules[name] = nil
	return nil
}

// remove removes an empty chain that nothing goes to.
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
	t.users = users // an empty chain used none
	return nil
}

// check refuses rules that go to chains that are not there, or that the kernel
// lacks something for. Targets that need no options are written like chains.
func (t *fakeTable) check(lack string) error {
	targets := []string{"", "ACCEPT", "DROP", "RETURN", "REJECT", "MASQUERADE", "LOG", "NOTRACK", "TRACE"}
	for chain := range t.before {
		for _, r := range t.rules[chain] {
			if lack != "" && strings.Contains(r, lack) {
				return fmt.Errorf("the kernel lacks %q", lack)
			}
			if _, ok := t.rules[ipt.Target(r)]; !ok && !slices.Contains(targets, ipt.Target(r)) {
				return fmt.Errorf("chain %q goes to %q, which is not there", chain, ipt.Target(r))
			}
		}
	}
	return nil
}
