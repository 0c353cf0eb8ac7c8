package ipttest

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice/internal/kernel/netfilter"
)

// hookTables has the tables that a packet passes at each hook, in order.
var hookTables = map[netfilter.Hook][]string{
	netfilter.Prerouting:  {"raw", "mangle", "nat"},
	netfilter.Input:       {"mangle", "filter"},
	netfilter.Forward:     {"mangle", "filter"},
	netfilter.Output:      {"raw", "mangle", "nat", "filter"},
	netfilter.Postrouting: {"mangle", "nat"},
}

var hookChains = map[netfilter.Hook]string{
	netfilter.Prerouting: "PREROUTING", netfilter.Input: "INPUT", netfilter.Forward: "FORWARD",
	netfilter.Output: "OUTPUT", netfilter.Postrouting: "POSTROUTING",
}

// Run evaluates the rules at a hook for a packet, as the kernel does. It panics at a match or
// target that it does not know.
func (k *Fake) Run(h netfilter.Hook, nat bool, p *netfilter.Packet, choose netfilter.Choose) netfilter.Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range hookTables[h] {
		t := k.tables[name]
		if t == nil || name == "nat" && (!nat || h != netfilter.Postrouting && p.DNAT) {
			continue
		}
		e := evaluation{h, t, k.parsed, p, choose}
		switch e.chain(hookChains[h]) {
		case "DROP":
			return netfilter.Drop
		case "REJECT":
			return netfilter.Reject
		}
	}
	return netfilter.Accept
}

// evaluation is the evaluation of one table.
type evaluation struct {
	hook   netfilter.Hook
	table  *fakeTable
	parsed map[string]*rule
	p      *netfilter.Packet
	choose netfilter.Choose
}

// rule is a parsed rule.
type rule struct {
	matches []match
	target  string
	isGoto  bool
	options []string // of the target
}

// match is one condition.
type match struct {
	option, value string
	inverted      bool
}

// chain evaluates a chain and returns the target that ends the packet's way through the table;
// empty if the packet leaves the chain.
func (e *evaluation) chain(name string) string {
	for _, text := range e.table.rules[name] {
		r := e.parsed[text]
		if r == nil {
			r = parse(text)
			e.parsed[text] = r
		}
		if !e.matches(r) {
			continue
		}
		if _, own := e.table.rules[r.target]; own {
			if end := e.chain(r.target); end != "" || r.isGoto {
				return end
			}
			continue
		}
		switch r.target {
		case "RETURN":
			return ""
		case "", "MARK":
			e.setMark(r)
		case "DNAT":
			e.p.Dst, e.p.DNAT = netip.MustParseAddrPort(r.options[1]), true
			return r.target
		case "MASQUERADE":
			e.p.Masqueraded = true
			return r.target
		case "ACCEPT", "DROP", "REJECT":
			return r.target
		default:
			panic("ipttest cannot evaluate the target of " + text)
		}
	}
	return ""
}

// setMark executes target MARK with --set-xmark VALUE/MASK.
func (e *evaluation) setMark(r *rule) {
	if r.target == "MARK" {
		value, mask := numbers(r.options[1])
		e.p.Mark = e.p.Mark&^mask ^ value
	}
}

// numbers parses VALUE/MASK.
func numbers(text string) (value, mask uint32) {
	a, b, _ := strings.Cut(text, "/")
	v, err := strconv.ParseUint(a, 0, 32)
	m, err2 := strconv.ParseUint(b, 0, 32)
	if err != nil || err2 != nil {
		panic("ipttest cannot parse " + text)
	}
	return uint32(v), uint32(m)
}

// parse parses a rule in the format of iptables-save.
func parse(text string) *rule {
	r, inverted := &rule{}, false
	words := split(text)
	for i := 0; i < len(words); i++ {
		switch w := words[i]; w {
		case "!":
			inverted = true
			continue
		case "-j", "-g":
			r.target, r.isGoto, r.options = words[i+1], w == "-g", words[i+2:]
			return r
		case "-m", "--comment", "--reap", "--rsource":
			if w == "-m" || w == "--comment" {
				i++
			}
		case "--set", "--rcheck":
			r.matches = append(r.matches, match{w, "", inverted})
		default:
			i++
			r.matches = append(r.matches, match{w, words[i], inverted})
		}
		inverted = false
	}
	return r
}

// split splits a rule into words, of which some are quoted.
func split(text string) (words []string) {
	for text = strings.TrimLeft(text, " "); text != ""; text = strings.TrimLeft(text, " ") {
		end := strings.IndexByte(text+" ", ' ')
		if text[0] == '"' {
			end = strings.IndexByte(text[1:], '"') + 2
		}
		words = append(words, text[:end])
		text = text[end:]
	}
	return words
}

func (e *evaluation) matches(r *rule) bool {
	return !slices.ContainsFunc(r.matches, func(m match) bool { return e.match(m) == m.inverted })
}

func (e *evaluation) match(m match) bool {
	p := e.p
	switch m.option {
	case "-s":
		return netip.MustParsePrefix(m.value).Contains(p.Src)
	case "-d":
		return netip.MustParsePrefix(m.value).Contains(p.Dst.Addr())
	case "-p":
		return m.value == map[uint8]string{6: "tcp", 17: "udp", 132: "sctp"}[p.Protocol]
	case "--dport":
		return m.value == strconv.Itoa(int(p.Dst.Port()))
	case "-i":
		name, isPrefix := strings.CutSuffix(m.value, "+")
		return p.In == name || isPrefix && strings.HasPrefix(p.In, name)
	case "-o":
		return p.LeavesBy(e.hook, m.value)
	case "--src-type":
		return p.Node.IsLocal(p.Src)
	case "--dst-type":
		return p.Node.IsLocal(p.Dst.Addr())
	case "--mark":
		value, mask := numbers(m.value)
		return p.Mark&mask == value
	case "--ctstate":
		states := strings.Split(m.value, ",")
		return slices.Contains(states, "NEW") || slices.Contains(states, "DNAT") && p.Translated()
	case "--ctorigdst":
		return netip.MustParsePrefix(m.value).Contains(p.Original.Addr())
	case "--probability":
		return e.choose(2) == 0
	case "--mode", "--seconds", "--name", "--mask", "--set":
		return true
	case "--rcheck":
		return false // nobody is remembered
	default:
		panic(fmt.Sprintf("ipttest cannot evaluate %s %s", m.option, m.value))
	}
}
