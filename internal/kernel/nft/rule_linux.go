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

type Rule struct {
	Exprs   []expr.Any
	Ranges  Ranges // what a lookup in a set without a name finds
	Comment string
}

// ListedRule is a rule as a listing has it: what it does and its comment.
type ListedRule struct {
	Comment string
	Exprs   string // in a form in which the kernel's answer equals what was sent
	Ranges  Ranges // what is in the set of its own, if it has one
}

// Listed returns the rule as a listing of it would be. Registers must be
// numbered as [Register] does.
func (r *Rule) Listed(f Family) ListedRule {
	l := decodeRule(encoded(Op{Kind: AddRule, Table: Table{Family: f}, Chain: &Chain{}, Rule: r}))
	l.Ranges = r.Ranges
	return l
}

// Register returns the number of the register that holds a 32-bit word, as the
// kernel tells it: every fourth one is the beginning of a 128-bit register.
func Register(word uint32) uint32 {
	if word%4 == 0 {
		return unix.NFT_REG_1 + word/4
	}
	return unix.NFT_REG32_00 + word
}

// decodeRule reads a rule. What is in a set of its own, the kernel tells by the
// set's name, which is in place of the ranges.
func decodeRule(a netlink.Attrs) ListedRule {
	var s []byte
	r := ListedRule{Comment: comment(a.Get(unix.NFTA_RULE_USERDATA))}
	for _, x := range a.Get(unix.NFTA_RULE_EXPRESSIONS).All() {
		s = append(appendExpr(s, x), '\n')
		if set, own := ownSet(x); own {
			r.Ranges = Ranges(set)
		}
	}
	r.Exprs = string(s)
	return r
}

// ownSet returns the name of the set that a rule has to itself, if an expression
// looks something up there.
func ownSet(x netlink.Attrs) (name string, own bool) {
	name = x.Text(unix.NFTA_EXPR_DATA, unix.NFTA_LOOKUP_SET)
	return name, x.Text(unix.NFTA_EXPR_NAME) == "lookup" && strings.HasPrefix(name, OwnSet)
}

// nestedValues are the attributes that hold data or a verdict.
var nestedValues = map[string][]int{
	"cmp": {unix.NFTA_CMP_DATA}, "immediate": {unix.NFTA_IMMEDIATE_DATA}, "bitwise": {unix.NFTA_BITWISE_MASK, unix.NFTA_BITWISE_XOR},
}

// appendExpr writes an expression's name and its attributes in order of their
// kinds. The kernel tells more than it was given: what is zero is left out, and
// so is the end of a range of one.
func appendExpr(s []byte, x netlink.Attrs) []byte {
	name := x.Text(unix.NFTA_EXPR_NAME)
	var values [32]netlink.Attrs // by kind; no expression has as many
	for kind, v := range x.Get(unix.NFTA_EXPR_DATA).All() {
		// A lookup with register zero takes a verdict; one without takes nothing.
		if len(bytes.Trim(v, "\x00")) > 0 || name == "lookup" && kind == unix.NFTA_LOOKUP_DREG {
			values[kind%32] = v
		}
	}
	if name == "nat" {
		singleRange(&values)
	}
	if _, own := ownSet(x); own {
		values[unix.NFTA_LOOKUP_SET] = nil // the kernel gives it a name
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
				depth = 2 // a verdict has parts, too
			}
			s = appendValue(s, v, depth)
		}
	}
	return s
}

// appendValue writes an attribute's value. Nested ones are written by their
// parts, since the flag that says so is not always set.
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

// singleRange undoes what the kernel adds to a translation to one address and
// port: the range's end, and that there is an address.
func singleRange(values *[32]netlink.Attrs) {
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

// attrs are what an expression has, by kind: bytes, or an expression, which has
// no name if it is nested attributes. Whoever knows one takes it out.
type attrs map[int]any

// parseLine reads a line of a listed rule.
func parseLine(line string) (*listedExpr, error) {
	x, rest, err := parseExpr(strings.TrimSpace(line))
	if err == nil && rest != "" {
		err = fmt.Errorf("unexpected %q", rest)
	}
	return x, err
}

// parseExpr reads what appendExpr wrote, up to the end of the text or the
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

// bytes takes an attribute out; nil if there is none.
func (a attrs) bytes(kind int) []byte {
	b, _ := a[kind].([]byte)
	delete(a, kind)
	return b
}

// number takes a number out, which may have been left out if it is zero.
func (a attrs) number(kind int) (n uint64) {
	for _, b := range a.bytes(kind) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (a attrs) string(kind int) string { return strings.TrimRight(string(a.bytes(kind)), "\x00") }

// nested takes an expression out, or nested attributes; an empty one if there is none.
func (a attrs) nested(kind int) *listedExpr {
	x, ok := a[kind].(*listedExpr)
	if delete(a, kind); !ok {
		return &listedExpr{}
	}
	return x
}

// done is an error if there is more than was taken out.
func (a attrs) done() error {
	if len(a) == 0 {
		return nil
	}
	return fmt.Errorf("attributes %v are not known", slices.Sorted(maps.Keys(a)))
}
