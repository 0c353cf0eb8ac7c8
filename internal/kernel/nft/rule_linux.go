package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Rule is one rule.
type Rule struct {
	Exprs   []expr.Any
	Comment string
}

// ListedRule is a rule as a listing has it: what it does and its comment.
type ListedRule struct {
	Comment string
	Exprs   string // in a form in which the kernel's answer equals what was sent
}

// Listed returns the rule as a listing of it would be. Registers must be
// numbered as [Register] does.
func (r *Rule) Listed(f Family) ListedRule {
	var b strings.Builder
	for _, x := range r.Exprs {
		encoded, err := expr.Marshal(byte(f), x)
		if err != nil {
			panic(fmt.Sprintf("encode %T of rule %q: %v", x, r.Comment, err))
		}
		writeExpr(&b, encoded)
	}
	return ListedRule{Comment: r.Comment, Exprs: b.String()}
}

// Register returns the number of the register that holds a 32-bit word, as the
// kernel tells it: every fourth one is the beginning of a 128-bit register.
func Register(word uint32) uint32 {
	if word%4 == 0 {
		return unix.NFT_REG_1 + word/4
	}
	return unix.NFT_REG32_00 + word
}

// decodeRule decodes a rule of a listing.
func decodeRule(b []byte) ListedRule {
	var s strings.Builder
	for _, x := range netlink.Attributes(netlink.Attribute(b, unix.NFTA_RULE_EXPRESSIONS)) {
		writeExpr(&s, x)
	}
	return ListedRule{
		Comment: comment(netlink.Attribute(b, unix.NFTA_RULE_USERDATA), udataComment),
		Exprs:   s.String(),
	}
}

// writeExpr writes an expression's name and its attributes in order of their
// kinds. The kernel tells more than it was given: what is zero is left out, and
// so is the end of a range of one.
func writeExpr(s *strings.Builder, b []byte) {
	name := text(b, unix.NFTA_EXPR_NAME)
	values := map[uint16][]byte{}
	for kind, v := range netlink.Attributes(netlink.Attribute(b, unix.NFTA_EXPR_DATA)) {
		// A lookup with register zero takes a verdict; one without takes nothing.
		if len(bytes.Trim(v, "\x00")) > 0 || name == "lookup" && kind == unix.NFTA_LOOKUP_DREG {
			values[kind] = v
		}
	}
	if name == "nat" {
		singleRange(values)
	}
	s.WriteString(name)
	for _, kind := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(s, " %d=", kind)
		writeValue(s, values[kind], nestedValues[name] == kind || name == "bitwise" && kind >= unix.NFTA_BITWISE_MASK)
	}
	s.WriteByte('\n')
}

// nestedValues are the attributes that hold data or a verdict.
var nestedValues = map[string]uint16{"cmp": unix.NFTA_CMP_DATA, "immediate": unix.NFTA_IMMEDIATE_DATA}

// writeValue writes an attribute's value. Nested ones are written by their
// parts, since the flag that says so is not always set.
func writeValue(s *strings.Builder, v []byte, nested bool) {
	if !nested {
		fmt.Fprintf(s, "%x", v)
		return
	}
	s.WriteByte('(')
	for kind, part := range netlink.Attributes(v) {
		fmt.Fprintf(s, " %d=", kind)
		writeValue(s, part, kind == unix.NFTA_DATA_VERDICT)
	}
	s.WriteByte(')')
}

// singleRange takes away what the kernel adds to a translation to one address
// and port: the range's end, and that there is an address.
func singleRange(values map[uint16][]byte) {
	const hasAddress = 1 // NF_NAT_RANGE_MAP_IPS
	for low, high := range map[uint16]uint16{
		unix.NFTA_NAT_REG_ADDR_MIN:  unix.NFTA_NAT_REG_ADDR_MAX,
		unix.NFTA_NAT_REG_PROTO_MIN: unix.NFTA_NAT_REG_PROTO_MAX,
	} {
		if bytes.Equal(values[low], values[high]) {
			delete(values, high)
		}
	}
	if f := values[unix.NFTA_NAT_FLAGS]; len(f) == 4 && values[unix.NFTA_NAT_REG_ADDR_MIN] != nil {
		values[unix.NFTA_NAT_FLAGS] = binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(f)|hasAddress)
	}
}
