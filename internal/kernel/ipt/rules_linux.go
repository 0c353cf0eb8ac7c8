package ipt

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// The kernel's numbers of verdicts. With the legacy variant NF_REPEAT stands for RETURN.
const nfDrop, nfAccept, nfRepeat = 0, 1, 4

// Rule is a rule as the kernel has it, abridged: without the values of what it matches,
// and without the options of its target.
type Rule struct {
	Options []string // what limits the packets that it matches, such as "-i" and "-m conntrack"; empty if it matches all
	Comment string
	Target  string // a verdict, a chain or the name of another target, as the programs print them; empty if there is none
	Handle  uint64 // identifies the rule in its table, with the nft variant; 0 for each verdict of a map that the rule uses
}

// String returns the rule in the format of [Chain], abridged.
func (r Rule) String() string {
	words := slices.Clone(r.Options)
	if r.Comment != "" {
		words = append(words, fmt.Sprintf("-m comment --comment %q", r.Comment))
	}
	if r.Target != "" {
		words = append(words, "-j "+r.Target)
	}
	return strings.Join(words, " ")
}

// RuleChain is a chain with abridged rules.
type RuleChain struct {
	Policy string // of a built-in chain; empty if the chain is not built in
	Rules  []Rule
}

// Rules returns the chains of a table by name, in the network namespace of the calling
// thread; none if the table is not in use. Unlike [Interface.Save] it runs no program,
// needs CAP_NET_ADMIN only, and also reads tables that the nft program has written.
func Rules(ctx context.Context, f Family, v Variant, table string) (map[string]*RuleChain, error) {
	if v == Legacy {
		return legacyRules(f, table)
	}
	chains, err := nftRules(ctx, f, table)
	if err != nil {
		return nil, fmt.Errorf("list table %s of %s: %w", table, Name(f, v), err)
	}
	return chains, nil
}

func nftRules(ctx context.Context, f Family, table string) (map[string]*RuleChain, error) {
	all := map[string]*RuleChain{}
	chains, err := requestNFTables(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, f)
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		if c.Text(unix.NFTA_CHAIN_TABLE) != table {
			continue
		}
		chain := &RuleChain{}
		if c.Get(unix.NFTA_CHAIN_HOOK) != nil {
			chain.Policy = verdictName(int32(c.Number(unix.NFTA_CHAIN_POLICY)), "")
		}
		all[c.Text(unix.NFTA_CHAIN_NAME)] = chain
	}
	if len(all) == 0 {
		return nil, nil
	}
	rules, err := requestNFTables(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, f, table)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		chain := all[r.Text(unix.NFTA_RULE_CHAIN)]
		if chain == nil || r.Text(unix.NFTA_RULE_TABLE) != table { // old kernels list all tables
			continue
		}
		rule, vmap := nftRule(f, r)
		if chain.Rules = append(chain.Rules, rule); vmap == "" {
			continue
		}
		targets, err := mapTargets(f, table, vmap)
		if err != nil {
			return nil, err
		}
		for _, target := range targets {
			rule.Target, rule.Handle = target, 0
			chain.Rules = append(chain.Rules, rule)
		}
	}
	return all, ctx.Err()
}

// nftRule returns a rule, and the name of the map that it takes a verdict from, if any.
func nftRule(f Family, a netlink.Attrs) (r Rule, vmap string) {
	r.Handle = a.Number(unix.NFTA_RULE_HANDLE)
	for _, x := range a.Get(unix.NFTA_RULE_EXPRESSIONS).All() {
		data := x.Get(unix.NFTA_EXPR_DATA)
		option := ""
		switch name := x.Text(unix.NFTA_EXPR_NAME); name {
		case "match":
			if name := data.Text(unix.NFTA_MATCH_NAME); name == "comment" {
				r.Comment = unix.ByteSliceToString(data.Get(unix.NFTA_MATCH_INFO))
			} else {
				option = "-m " + name
			}
		case "target":
			r.Target = data.Text(unix.NFTA_TARGET_NAME)
		case "reject":
			r.Target = "REJECT"
		case "immediate":
			if v := data.Get(unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT); v != nil {
				r.Target = verdictOf(v)
			}
		case "meta":
			option = metaOption(data)
		case "payload":
			option = payloadOption(f, data)
		case "lookup":
			if option = "-m set"; data.Get(unix.NFTA_LOOKUP_DREG) != nil && data.Number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT {
				vmap = data.Text(unix.NFTA_LOOKUP_SET)
			}
		case "counter", "log", "cmp", "bitwise", "byteorder", "range": // the last four check what another expression has loaded
		default:
			option = "-m " + name
		}
		if option != "" && !slices.Contains(r.Options, option) {
			r.Options = append(r.Options, option)
		}
	}
	return r, vmap
}

// metaOption returns the option of a rule that checks metadata of a packet.
func metaOption(data netlink.Attrs) string {
	switch data.Number(unix.NFTA_META_KEY) {
	case unix.NFT_META_IIF, unix.NFT_META_IIFNAME:
		return "-i"
	case unix.NFT_META_OIF, unix.NFT_META_OIFNAME:
		return "-o"
	case unix.NFT_META_L4PROTO, unix.NFT_META_NFPROTO, unix.NFT_META_PROTOCOL:
		return "-p"
	case unix.NFT_META_MARK:
		return "-m mark"
	default:
		return "-m meta"
	}
}

// payloadOption returns the option of a rule that checks a field of a packet's headers.
func payloadOption(f Family, data netlink.Attrs) string {
	source, destination, end := uint64(12), uint64(16), uint64(20)
	if f == IPv6 {
		source, destination, end = 8, 24, 40
	}
	base, offset := data.Number(unix.NFTA_PAYLOAD_BASE), data.Number(unix.NFTA_PAYLOAD_OFFSET)
	switch network := base == unix.NFT_PAYLOAD_NETWORK_HEADER; {
	case network && offset >= source && offset < destination:
		return "-s"
	case network && offset >= destination && offset < end:
		return "-d"
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		return "-m multiport"
	default:
		return "-m payload"
	}
}

func verdictOf(v netlink.Attrs) string {
	return verdictName(int32(v.Number(unix.NFTA_VERDICT_CODE)), v.Text(unix.NFTA_VERDICT_CHAIN))
}

// verdictName returns a verdict as the programs print it.
func verdictName(code int32, chain string) string {
	switch code {
	case nfDrop:
		return "DROP"
	case nfAccept:
		return "ACCEPT"
	case unix.NFT_RETURN:
		return "RETURN"
	default:
		return chain // of a jump; empty if evaluation continues
	}
}

// mapTargets returns the verdicts that a map of a table has, sorted.
func mapTargets(f Family, table, name string) (targets []string, err error) {
	answers, err := requestNFTables(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, f, table, name)
	for _, a := range answers {
		for _, e := range a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
			target := verdictOf(e.Get(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT))
			if !slices.Contains(targets, target) {
				targets = append(targets, target)
			}
		}
	}
	slices.Sort(targets)
	return targets, err
}

// legacyRules implements Rules for the legacy variant.
func legacyRules(f Family, table string) (map[string]*RuleChain, error) {
	names, err := LegacyTables(f)
	if err != nil || !slices.Contains(names, table) {
		return nil, err
	}
	entries, starts, err := readLegacy(f, table)
	if err != nil {
		return nil, err
	}
	all := map[string]*RuleChain{}
	for i, e := range entries {
		if all[e.chain] == nil {
			all[e.chain] = &RuleChain{}
		}
		c, rule := all[e.chain], legacyRule(f, e)
		if rule.Target == "" && e.jump >= 0 {
			rule.Target = starts[e.jump] // none if the rule continues with the next one
		}
		switch last := i+1 == len(entries) || entries[i+1].chain != e.chain; {
		case !last:
			c.Rules = append(c.Rules, rule)
		case rule.Target != "RETURN":
			c.Policy = rule.Target
		}
	}
	return all, nil
}

// legacyRule decodes an entry except for the name of a chain that it jumps to.
func legacyRule(f Family, e legacyEntry) (r Rule) {
	header := map[Family][]struct {
		option     string
		start, end int
	}{ // of struct ipt_ip and struct ip6t_ip6
		IPv4: {{"-s", 8, 12}, {"-d", 12, 16}, {"-i", 48, 64}, {"-o", 64, 80}, {"-p", 80, 82}},
		IPv6: {{"-s", 32, 48}, {"-d", 48, 64}, {"-i", 96, 112}, {"-o", 112, 128}, {"-p", 128, 130}},
	}[f]
	for _, field := range header {
		if slices.ContainsFunc(e.bytes[field.start:field.end], func(b byte) bool { return b != 0 }) {
			r.Options = append(r.Options, field.option)
		}
	}
	const nameAt, dataAt = 2, 32 // in struct xt_entry_match and xt_entry_target, after the size
	for at := legacyCounters(f) + 16; at+dataAt <= e.target; {
		size := int(binary.NativeEndian.Uint16(e.bytes[at:]))
		if size < dataAt || at+size > e.target {
			break
		}
		if name := unix.ByteSliceToString(e.bytes[at+nameAt : at+dataAt-1]); name == "comment" {
			r.Comment = unix.ByteSliceToString(e.bytes[at+dataAt : at+size])
		} else {
			r.Options = append(r.Options, "-m "+name)
		}
		at += size
	}
	name := unix.ByteSliceToString(e.bytes[e.target+nameAt : e.target+dataAt-1])
	if r.Target = name; name == "" {
		switch code := int32(binary.NativeEndian.Uint32(e.bytes[e.target+dataAt:])); code {
		case -1 - nfDrop, -1 - nfAccept:
			r.Target = verdictName(-1-code, "")
		case -1 - nfRepeat:
			r.Target = "RETURN"
		}
	}
	return r
}
