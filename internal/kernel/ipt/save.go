package ipt

import (
	"bytes"
	"fmt"
	"strings"
)

// parse reads the output of iptables-save.
func parse(output []byte) ([]Table, error) {
	var tables []Table
	var chains map[string]int // into the last table's
	open := false
	number := 0
	for line := range bytes.Lines(output) {
		number++
		text := strings.TrimSuffix(string(line), "\n")
		malformed := func() error { return fmt.Errorf("read line %d of iptables-save: unexpected %q", number, text) }
		switch {
		case text == "" || text[0] == '#':
		case text[0] == '*' && !open:
			tables = append(tables, Table{Name: text[1:]})
			chains = map[string]int{}
			open = true
		case !open:
			return nil, malformed()
		case text == "COMMIT":
			open = false
		case text[0] == ':':
			name, policy, ok := parseChain(text)
			if !ok {
				return nil, malformed()
			}
			t := &tables[len(tables)-1]
			chains[name] = len(t.Chains)
			t.Chains = append(t.Chains, Chain{Name: name, Policy: policy})
		default:
			rest, isRule := strings.CutPrefix(text, "-A ")
			name, rule, _ := strings.Cut(rest, " ")
			i, known := chains[name]
			if !isRule || !known {
				return nil, malformed()
			}
			c := &tables[len(tables)-1].Chains[i]
			c.Rules = append(c.Rules, rule)
		}
	}
	if open {
		return nil, fmt.Errorf("read iptables-save: it ends within table %s", tables[len(tables)-1].Name)
	}
	return tables, nil
}

// parseChain reads a line such as ":INPUT ACCEPT [0:0]". A chain that is not
// built in has no policy, written "-".
func parseChain(text string) (name, policy string, ok bool) {
	fields := strings.Fields(text[1:])
	if len(fields) != 3 && len(fields) != 2 {
		return "", "", false
	}
	if fields[1] == "-" {
		return fields[0], "", true
	}
	return fields[0], fields[1], true
}

// Target returns the chain that a rule goes to, by jump or goto, or the name
// of its target if that has no options; empty if the rule has none or one with
// options. Nothing follows the name of a chain, and text that somebody chose
// cannot look like it: it is quoted as soon as it holds a blank.
func Target(rule string) string {
	rest, name := cutLastField(rule)
	_, how := cutLastField(rest)
	if how != "-j" && how != "-g" || strings.HasSuffix(name, `"`) {
		return ""
	}
	return name
}

func cutLastField(s string) (before, last string) {
	if i := strings.LastIndexByte(s, ' '); i >= 0 {
		return s[:i], s[i+1:]
	}
	return "", s
}
