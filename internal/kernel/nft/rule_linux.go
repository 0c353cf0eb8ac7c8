package nft

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Rule is a rule to be added.
type Rule struct {
	Exprs   []expr.Any
	Ranges  Ranges // the elements of the rule's anonymous set, which a Lookup without SetName searches
	Comment string
}

// ListedRule is a rule in the form of a [Listing]. Two rules that do the same and have the
// same comment are equal.
type ListedRule struct {
	Comment string
	Exprs   string // normalized, so that a rule is the same when sent and when listed
	Ranges  Ranges // the elements of the anonymous set, if there is one
}

// Listed returns the rule as a listing would have it. Its registers must be numbered as
// [Register] does.
func (r *Rule) Listed(f Family) ListedRule {
	l := decodeRule(encodeAttrs(Op{Kind: AddRule, Table: Table{Family: f}, Chain: &Chain{}, Rule: r}))
	l.Ranges = r.Ranges
	return l
}

// Register returns the number of the register that holds a 32-bit word, as the kernel
// reports it: every fourth one is the start of a 128-bit register.
func Register(word uint32) uint32 {
	if word%4 == 0 {
		return unix.NFT_REG_1 + word/4
	}
	return unix.NFT_REG32_00 + word
}

// decodeRule decodes a rule. The kernel refers to an anonymous set by its name, which is
// stored in Ranges; [Conn.readRanges] replaces it.
func decodeRule(a netlink.Attrs) ListedRule {
	var s []byte
	r := ListedRule{Comment: comment(a.Get(unix.NFTA_RULE_USERDATA))}
	for _, x := range a.Get(unix.NFTA_RULE_EXPRESSIONS).All() {
		s = append(appendExpr(s, x), '\n')
		if set, ok := anonymousSet(x); ok {
			r.Ranges = Ranges(set)
		}
	}
	r.Exprs = string(s)
	return r
}

// anonymousSet returns the name of the set that an expression searches, and whether it is a
// lookup in an anonymous set.
func anonymousSet(x netlink.Attrs) (name string, ok bool) {
	name = x.Text(unix.NFTA_EXPR_DATA, unix.NFTA_LOOKUP_SET)
	return name, x.Text(unix.NFTA_EXPR_NAME) == "lookup" && strings.HasPrefix(name, AnonymousSetPrefix)
}

// nestedValues has the attributes of expressions that hold data or a verdict.
var nestedValues = map[string][]int{
	"cmp": {unix.NFTA_CMP_DATA}, "immediate": {unix.NFTA_IMMEDIATE_DATA}, "bitwise": {unix.NFTA_BITWISE_MASK, unix.NFTA_BITWISE_XOR},
}

// appendExpr appends an expression's name and its attributes, ordered by kind. The
// kernel reports more attributes than it was sent, so attributes that are zero are left out.
func appendExpr(s []byte, x netlink.Attrs) []byte {
	name := x.Text(unix.NFTA_EXPR_NAME)
	var values [32]netlink.Attrs // by kind; no expression has as many
	for kind, v := range x.Get(unix.NFTA_EXPR_DATA).All() {
		// A lookup with the destination register 0 is a vmap; one without is a set lookup.
		if len(bytes.Trim(v, "\x00")) > 0 || name == "lookup" && kind == unix.NFTA_LOOKUP_DREG {
			values[kind%32] = v
		}
	}
	if name == "nat" {
		dropImpliedNAT(&values)
	}
	if _, ok := anonymousSet(x); ok {
		values[unix.NFTA_LOOKUP_SET] = nil // the kernel chooses the name
	}
	s = append(s, name...)
	for kind, v := range values {
		if v != nil {
			s = fmt.Appendf(s, " %d=", kind)
			if name == "dynset" && kind == unix.NFTA_DYNSET_EXPR {
				s = append(appendExpr(append(s, '('), v), ')')
				continue
			}
			depth := 0
			if slices.Contains(nestedValues[name], kind) {
				depth = 2 // a verdict is nested, too
			}
			s = appendValue(s, v, depth)
		}
	}
	return s
}

// appendValue appends an attribute's value. Nested attributes are decoded, because their
// NLA_F_NESTED flag is not always set, which would make equal values differ.
func appendValue(s []byte, v netlink.Attrs, depth int) []byte {
	if depth == 0 {
		return hex.AppendEncode(s, v)
	}
	s = append(s, '(')
	for kind, part := range v.All() {
		inner := 0
		if kind == unix.NFTA_DATA_VERDICT {
			inner = depth - 1
		}
		s = fmt.Appendf(s, " %d=", kind)
		s = appendValue(s, part, inner)
	}
	return append(s, ')')
}

// dropImpliedNAT removes what the kernel adds to a translation to a single address or port:
// the end of the range and the flag for an address.
func dropImpliedNAT(values *[32]netlink.Attrs) {
	const hasAddress = 1 // NF_NAT_RANGE_MAP_IPS
	for low, high := range map[int]int{
		unix.NFTA_NAT_REG_ADDR_MIN:  unix.NFTA_NAT_REG_ADDR_MAX,
		unix.NFTA_NAT_REG_PROTO_MIN: unix.NFTA_NAT_REG_PROTO_MAX,
	} {
		if bytes.Equal(values[low], values[high]) {
			values[high] = nil
		}
	}
	flags := make(netlink.Attrs, 4)
	copy(flags, values[unix.NFTA_NAT_FLAGS])
	flags[3] |= hasAddress
	values[unix.NFTA_NAT_FLAGS] = flags
}

// listedExpr is an expression of a [ListedRule].
type listedExpr struct {
	name string
	attrs
}

// attrs are the attributes of an expression, by kind: []byte, or a *listedExpr, which has
// no name if it stands for nested attributes. The methods remove what they return, so that
// the attributes that nobody asked for remain.
type attrs map[int]any

// parseLine parses one line of [ListedRule.Exprs].
func parseLine(line string) (*listedExpr, error) {
	x, rest, err := parseExpr(strings.TrimSpace(line))
	if err == nil && rest != "" {
		err = fmt.Errorf("unexpected %q", rest)
	}
	return x, err
}

// parseExpr parses what appendExpr appended, up to the end of the text or a closing
// parenthesis.
func parseExpr(text string) (x *listedExpr, rest string, err error) {
	end := strings.IndexAny(text+" ", " )")
	all := attrs{}
	x = &listedExpr{text[:end], all}
	text = text[end:]
	for text = strings.TrimLeft(text, " "); text != "" && text[0] != ')' && err == nil; text = strings.TrimLeft(text, " ") {
		name, value, _ := strings.Cut(text, "=")
		kind, err := strconv.Atoi(name)
		if err != nil {
			return x, "", err
		}
		if inner, nested := strings.CutPrefix(value, "("); nested {
			if all[kind], text, err = parseExpr(inner); err != nil {
				return x, "", err
			}
			text = strings.TrimPrefix(text, ")")
			continue
		}
		end := strings.IndexAny(value+" ", " )")
		if all[kind], err = hex.DecodeString(value[:end]); err != nil {
			return x, "", err
		}
		text = value[end:]
	}
	return x, text, nil
}

// bytes removes and returns an attribute; nil if there is none.
func (a attrs) bytes(kind int) []byte {
	b, _ := a[kind].([]byte)
	delete(a, kind)
	return b
}

// number removes and returns a number; 0 if there is none, because zeros are left out.
func (a attrs) number(kind int) (n uint64) {
	for _, b := range a.bytes(kind) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (a attrs) string(kind int) string { return strings.TrimRight(string(a.bytes(kind)), "\x00") }

// nested removes and returns an expression or nested attributes; an empty one if there are
// none.
func (a attrs) nested(kind int) *listedExpr {
	x, ok := a[kind].(*listedExpr)
	if delete(a, kind); !ok {
		return &listedExpr{}
	}
	return x
}

// done returns an error if there are attributes left.
func (a attrs) done() error {
	if len(a) == 0 {
		return nil
	}
	return fmt.Errorf("unsupported attributes %v", slices.Sorted(maps.Keys(a)))
}
