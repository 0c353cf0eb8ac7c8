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
	begun := "" // a rule whose comment has line breaks, so far
	for line := range bytes.Lines(output) {
		number++
		text := begun + strings.TrimSuffix(string(line), "\n")
		begun = ""
		malformed := func() error { return fmt.Errorf("read line %d of iptables-save: unexpected %q", number, text) }
		switch {
		case strings.HasSuffix(text, "' is incompatible, use 'nft' tool."):
			_, name, _ := strings.Cut(strings.TrimSuffix(text, "' is incompatible, use 'nft' tool."), "`")
			tables = append(tables, Table{Name: name, Unreadable: true})
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
			fields := strings.Fields(text[1:]) // such as "INPUT ACCEPT [0:0]"; "-" is no policy
			if len(fields) != 2 && len(fields) != 3 {
				return nil, malformed()
			}
			t := &tables[len(tables)-1]
			chains[fields[0]] = len(t.Chains)
			t.Chains = append(t.Chains, Chain{Name: fields[0], Policy: strings.TrimPrefix(fields[1], "-")})
		default:
			rest, isRule := strings.CutPrefix(text, "-A ")
			name, rule, _ := strings.Cut(rest, " ")
			i, known := chains[name]
			if !isRule || !known {
				return nil, malformed()
			}
			if endsInQuotes(rule) {
				begun = text + " " // a restore takes no line break: there the rule cannot be named
				continue
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

// endsInQuotes reports whether a rule goes on after a line break, which is printed as
// it is within quotes. Those of a chain's name begin none.
func endsInQuotes(rule string) (within bool) {
	for i := 0; i < len(rule); i++ {
		switch {
		case rule[i] == '\\':
			i++
		case within:
			within = rule[i] != '"'
		default:
			within = strings.HasSuffix(rule[:i+1], ` "`)
		}
	}
	return within
}

// Target returns the chain that a rule goes to, by jump or goto, or the name
// of its target if that has no options; empty if the rule has none or one with
// options. Nothing follows the name of a chain, and the text of a comment cannot
// look like it: it is quoted as soon as it holds a blank.
func Target(rule string) string {
	at := strings.LastIndexByte(rule, ' ')
	if at < 0 || strings.HasSuffix(rule, `"`) {
		return ""
	}
	switch how := rule[strings.LastIndexByte(rule[:at], ' ')+1 : at]; how {
	case "-j", "-g":
		return rule[at+1:]
	default:
		return ""
	}
}
