package ipt_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
)

// TestContract checks that the programs and the Fake behave the same.
func TestContract(t *testing.T) {
	implementations := map[string]func(*testing.T) ipt.Interface{
		"fake": func(*testing.T) ipt.Interface { return ipttest.NewFake() },
	}
	for _, f := range ipt.Families() {
		for _, v := range ipt.Variants() {
			implementations[ipt.Name(f, v)] = func(t *testing.T) ipt.Interface { return openInNamespace(t, f, v) }
		}
	}
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			for _, c := range contract {
				t.Run(c.name, func(t *testing.T) { runContract(t, open(t), c) })
			}
		})
	}
}

// openInNamespace opens the programs in a new network namespace. The namespace ends
// with the test's thread.
func openInNamespace(t *testing.T, f ipt.Family, v ipt.Variant) *ipt.Conn {
	t.Helper()
	lab.Namespace(t)
	c, err := ipt.Open(t.Context(), f, v)
	if err != nil {
		t.Fatalf("%v (make deps installs it)", err)
	}
	return c
}

// step is one restore of a contract. Refused is the line that must be refused; 0 if
// the restore must succeed.
type step struct {
	input   string
	refused int
}

type contractCase struct {
	name  string
	steps []step
	want  map[string][]string // rules by "table chain", of chains that are not built in or have rules
}

const base = `*nat
:ONE - [0:0]
:TWO - [0:0]
-A OUTPUT -j ONE
-A ONE -m comment --comment "to two" -j TWO
-A TWO -j RETURN
COMMIT
`

var baseRules = map[string][]string{
	"nat OUTPUT": {"-j ONE"},
	"nat ONE":    {`-m comment --comment "to two" -j TWO`},
	"nat TWO":    {"-j RETURN"},
}

var contract = []contractCase{
	{"unused", nil, map[string][]string{}},
	{"add", []step{{base, 0}}, baseRules},
	{
		"declaring a chain empties it",
		[]step{{base, 0}, {"*nat\n:TWO - [0:0]\nCOMMIT\n", 0}},
		map[string][]string{"nat OUTPUT": baseRules["nat OUTPUT"], "nat ONE": baseRules["nat ONE"], "nat TWO": nil},
	},
	{
		"insert goes first",
		[]step{{base, 0}, {"*nat\n-I TWO -j ACCEPT\nCOMMIT\n", 0}},
		map[string][]string{"nat OUTPUT": baseRules["nat OUTPUT"], "nat ONE": baseRules["nat ONE"], "nat TWO": {"-j ACCEPT", "-j RETURN"}},
	},
	{
		"delete takes one of equals",
		[]step{{"*filter\n-A INPUT -j DROP\n-A INPUT -j ACCEPT\n-A INPUT -j DROP\n-D INPUT -j DROP\nCOMMIT\n", 0}},
		map[string][]string{"filter INPUT": {"-j ACCEPT", "-j DROP"}},
	},
	{
		"a rule that only counts",
		[]step{{"*filter\n-A INPUT -p tcp\n-A INPUT -j DROP\nCOMMIT\n", 0}},
		map[string][]string{"filter INPUT": {"-p tcp", "-j DROP"}},
	},
	{
		"everything goes away",
		[]step{{base, 0}, {"*nat\n:ONE - [0:0]\n:TWO - [0:0]\n-D OUTPUT -j ONE\n-X ONE\n-X TWO\nCOMMIT\n", 0}},
		map[string][]string{},
	},
	{
		"flush and remove",
		[]step{{base, 0}, {"*nat\n-D OUTPUT -j ONE\n-F ONE\n-F TWO\n-X ONE\n-X TWO\n-N ONE\nCOMMIT\n", 0}},
		map[string][]string{"nat ONE": nil},
	},
	{"a chain in use stays", []step{{base, 0}, {"*nat\n:TWO - [0:0]\n-X TWO\nCOMMIT\n", 3}}, baseRules},
	{"a chain with rules stays", []step{{base, 0}, {"*nat\n-D OUTPUT -j ONE\n-X ONE\nCOMMIT\n", 3}}, baseRules},
	{"no such rule", []step{{base, 0}, {"*nat\n-A TWO -j ACCEPT\n-D OUTPUT -j TWO\nCOMMIT\n", 3}}, baseRules},
	{"no such chain to add to", []step{{base, 0}, {"*nat\n-A NONE -j ACCEPT\nCOMMIT\n", 2}}, baseRules},
	{"no such chain to remove", []step{{base, 0}, {"*nat\n-X NONE\nCOMMIT\n", 2}}, baseRules},
	{"chain made twice", []step{{base, 0}, {"*nat\n-N ONE\nCOMMIT\n", 2}}, baseRules},
	{"no such command", []step{{base, 0}, {"*nat\n-A TWO -j ACCEPT\n--jump\nCOMMIT\n", 3}}, baseRules},
	{"no such table", []step{{base, 0}, {"*nut\nCOMMIT\n", 1}}, baseRules},
	{"no commit", []step{{base, 0}, {"*nat\n-A TWO -j ACCEPT\n", 3}}, baseRules},
	{"not a table", []step{{base, 0}, {"hello\n", 1}}, baseRules},
	{
		"tables before the refused one hold",
		[]step{{"*filter\n-A INPUT -j DROP\nCOMMIT\n*nat\n-X NONE\nCOMMIT\n", 5}},
		map[string][]string{"filter INPUT": {"-j DROP"}},
	},
}

func runContract(t *testing.T, k ipt.Interface, c contractCase) {
	for i, s := range c.steps {
		err := k.Restore(t.Context(), []byte(s.input))
		var refused *ipt.RestoreError
		switch {
		case s.refused == 0 && err != nil:
			t.Fatalf("step %d: %v", i, err)
		case s.refused != 0 && !errors.As(err, &refused):
			t.Fatalf("step %d: error %v, want a refused line", i, err)
		case s.refused != 0 && (refused.Line != s.refused || refused.Text != line(s.input, s.refused)):
			t.Errorf("step %d: refused line %d %q, want %d: %v", i, refused.Line, refused.Text, s.refused, err)
		}
	}
	wantRules(t, k, c.want)
	wantUses(t, k, c.want)
	wantStamp(t, k)
	for _, chain := range []string{"ONE", "NONE", "OUTPUT"} {
		if n, err := k.Packets(t.Context(), "mangle", chain, "to two"); n != 0 || err != nil {
			t.Errorf("%d packets, error %v, in a table that does not exist; want 0", n, err)
		}
		if n, err := k.Packets(t.Context(), "nat", chain, "to two"); n != 0 || err != nil {
			t.Errorf("%d packets, error %v, before any packet was sent; want 0", n, err)
		}
	}
}

// wantStamp checks that a stamp leads to the next one by our own changes alone, and
// does not if another process has changed something too.
func wantStamp(t *testing.T, k ipt.Interface) {
	t.Helper()
	stamp := func() ipt.Stamp {
		t.Helper()
		s, err := k.Stamp(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	restore := func(input string) {
		t.Helper()
		if err := k.Restore(t.Context(), []byte(input)); err != nil {
			t.Fatal(err)
		}
	}
	restore("*nat\n:OTHER - [0:0]\n-A OTHER -j ACCEPT\nCOMMIT\n*filter\n:OTHER - [0:0]\nCOMMIT\n") // so that all tables exist
	if last := stamp(); !last.LeadsTo(stamp()) {
		t.Errorf("stamp %v does not lead to %v although nothing changed", last, stamp())
	}
	for _, s := range []struct {
		input   string
		changes []ipt.Change
	}{
		{"*nat\n:STAMP - [0:0]\nCOMMIT\n", []ipt.Change{{"nat", 1, 0}}},
		{"*nat\n-A STAMP -j ACCEPT\n-A STAMP -j OTHER\nCOMMIT\n", []ipt.Change{{"nat", 0, 2}}},
		{"*filter\n:STAMP - [0:0]\n-A STAMP -j ACCEPT\nCOMMIT\n*nat\n:STAMP - [0:0]\n-A STAMP -j ACCEPT\nCOMMIT\n", []ipt.Change{{"filter", 1, 1}, {"nat", 0, -1}}},
		{"*nat\n-F STAMP\n-X STAMP\nCOMMIT\n", []ipt.Change{{"nat", -1, -1}}},
	} {
		last := stamp()
		restore(s.input)
		now := stamp()
		if last.LeadsTo(now) || !last.LeadsTo(now, s.changes...) {
			t.Errorf("after %q stamp %v does not lead to %v by changes %v, or does without", s.input, last, now, s.changes)
		}
	}
	before := stamp()
	restore("*nat\n-F OTHER\n-A OTHER -j RETURN\nCOMMIT\n")
	if now := stamp(); before.LeadsTo(now) {
		t.Errorf("stamps %v and %v are equal although a rule was replaced by one of the same length", before, now)
	}
	last := stamp()
	restore("*nat\n:STAMP - [0:0]\n-A STAMP -j ACCEPT\nCOMMIT\n") // ours
	restore("*nat\n-F OTHER\nCOMMIT\n")                           // another process's
	if now := stamp(); last.LeadsTo(now, ipt.Change{"nat", 1, 1}) {
		t.Errorf("stamp %v leads to %v by our change although another process made one too", last, now)
	}
}

// TestPackets checks that only rules of the chain with the comment are counted.
func TestPackets(t *testing.T) {
	for _, f := range ipt.Families() {
		for _, v := range ipt.Variants() {
			t.Run(ipt.Name(f, v), func(t *testing.T) {
				c := openInNamespace(t, f, v)
				lab.Loopback(t)
				const rule = `-p udp -m comment --comment "%s" -m udp --dport %d` + "\n"
				rules := fmt.Sprintf("-A INPUT "+rule+"-A INPUT "+rule+"-A INPUT "+rule+"-A OUTPUT "+rule,
					"ours", 1001, "ours", 1002, "theirs", 1001, "ours", 1001)
				if err := c.Restore(t.Context(), []byte("*filter\n"+rules+"COMMIT\n")); err != nil {
					t.Fatal(err)
				}
				to := map[ipt.Family]string{ipt.IPv4: "127.0.0.1", ipt.IPv6: "::1"}[f]
				for _, port := range []string{"1001", "1001", "1002", "1003"} {
					send(t, net.JoinHostPort(to, port))
				}
				if n, err := c.Packets(t.Context(), "filter", "INPUT", "ours"); n != 3 || err != nil {
					t.Errorf("%d packets, error %v; want 3", n, err)
				}
				var got []string
				err := c.Counters(t.Context(), "filter", func(chain, rule string, packets uint64) {
					got = append(got, fmt.Sprintf("%s %s\n%d", chain, rule, packets))
				})
				var want []string
				for i, l := range strings.Split(strings.TrimSpace(rules), "\n") {
					// The comment is quoted only if it must be.
					want = append(want, fmt.Sprintf("%s\n%d", strings.ReplaceAll(strings.TrimPrefix(l, "-A "), `"`, ""), []int{2, 1, 2, 2}[i]))
				}
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("error %v, counters mismatch (-want +got):\n%s", err, diff)
				}
			})
		}
	}
}

func send(t *testing.T, to string) {
	t.Helper()
	c, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
}

func line(input string, number int) string {
	lines := append(strings.Split(strings.TrimSuffix(input, "\n"), "\n"), "")
	return lines[number-1]
}

// wantRules checks the rules of all chains. It ignores empty built-in chains: which of
// them exist depends on the program.
func wantRules(t *testing.T, k ipt.Interface, want map[string][]string) {
	t.Helper()
	tables, err := k.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, table := range tables {
		for _, c := range table.Chains {
			if c.Policy == "" || len(c.Rules) > 0 {
				got[table.Name+" "+c.Name] = c.Rules
			}
			if builtin := slices.Contains(strings.Fields("PREROUTING INPUT FORWARD OUTPUT POSTROUTING"), c.Name); builtin != (c.Policy != "") {
				t.Errorf("table %s: chain %s has policy %q", table.Name, c.Name, c.Policy)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// wantUses checks that each of the rules counts in its chain and in the chain that it
// jumps to.
func wantUses(t *testing.T, k ipt.Interface, rules map[string][]string) {
	t.Helper()
	want := map[string]int{}
	for name, of := range rules {
		table, _, _ := strings.Cut(name, " ")
		want[name] += len(of)
		for _, r := range of {
			if to := table + " " + ipt.Target(r); slices.Contains(slices.Collect(maps.Keys(rules)), to) {
				want[to]++
			}
		}
	}
	uses, err := k.Uses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for table, chains := range uses {
		for chain, n := range chains {
			if _, wanted := want[table+" "+chain]; wanted || n != 0 {
				got[table+" "+chain] = n
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("uses (-want +got):\n%s", diff)
	}
}
