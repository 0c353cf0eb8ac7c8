package ipt

import (
	"bytes"
	"fmt"
	"strings"
)

// parse parses the output of iptables-save.
func parse(output []byte) ([]Table, error) {
	var tables []Table
	var chains map[string]int // by name, their index in the last table
	open := false
	number := 0
	pending := "" // the beginning of a rule whose comment has line breaks
	for line := range bytes.Lines(output) {
		number++
		text := pending + strings.TrimSuffix(string(line), "\n")
		pending = ""
		malformed := func() error { return fmt.Errorf("parse line %d of iptables-save: unexpected %q", number, text) }
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
			fields := strings.Fields(text[1:]) // such as "INPUT ACCEPT [0:0]"; "-" stands for no policy
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
				pending = text + " " // no text deletes such a rule: a restore does not accept a line break
				continue
			}
			c := &tables[len(tables)-1].Chains[i]
			c.Rules = append(c.Rules, rule)
		}
	}
	if open {
		return nil, fmt.Errorf("parse iptables-save: the output ends within table %s", tables[len(tables)-1].Name)
	}
	return tables, nil
}

// endsInQuotes reports whether a rule continues after a line break, which
// iptables-save prints verbatim within quotes. Only a quote after a space opens
// quotes: names of chains may contain some.
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

// Target returns the chain that a rule jumps or goes to, or the name of its target
// if that has no options. It is empty if the rule has no target, or one with
// options. It suffices to read the end of the rule: the name of a chain is always
// last, and a comment that contains a space, as "-j X" does, is quoted.
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
