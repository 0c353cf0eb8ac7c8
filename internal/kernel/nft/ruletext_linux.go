package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Text returns the nft command that adds the rule. It supports the expressions that we use;
// any other is an error.
func (r ListedRule) Text(t Table, chain string) (string, error) {
	w := &ruleText{family: t.Family, ranges: r.Ranges, registers: map[uint32]operand{}}
	for line := range strings.Lines(r.Exprs) {
		x, err := parseLine(line)
		if err == nil {
			err = w.expr(x)
		}
		if err != nil {
			return "", fmt.Errorf("print rule of chain %s in %v: expression %q: %w", chain, t, strings.TrimSpace(line), err)
		}
	}
	if r.Comment != "" {
		w.write("comment %q", r.Comment)
	}
	text := "add rule " + t.named(chain) + " " + strings.Join(w.words, " ")
	if strings.ContainsFunc(text, unicode.IsControl) { // the kernel accepts any bytes in a name
		return "", fmt.Errorf("print rule of chain %q in %v: a name in it has control characters", chain, t)
	}
	return text, nil
}

// Unreadable says why the nft program cannot parse the text of a rule that the kernel
// accepts; empty if it can.
func (r ListedRule) Unreadable(f Family) string {
	for line := range strings.Lines(r.Exprs) {
		x, _ := parseLine(line)
		switch _, isMap := x.attrs[unix.NFTA_DYNSET_SREG_DATA]; {
		case x.name == "tproxy":
			return "the kernel accepts this rule, but nft requires a protocol for tproxy"
		case x.name == "dynset" && isMap && f == IP6:
			return "the kernel accepts this rule, but nft before 1.0.9 aborts when it reads it"
		}
	}
	return ""
}

// operand is a value in a register.
type operand struct {
	text  string
	value func([]byte) string // prints what the operand is compared with; nil: as a number
	flags map[uint32]string   // the names of single bits
	wire  bool                // numbers are in network byte order
	data  []byte              // the value, if it is constant
	mask  []byte              // the bits to keep; nil: all
	xor   []byte              // the bits to invert after that
}

// ruleText builds the text of a rule, expression by expression.
type ruleText struct {
	family    Family
	ranges    Ranges
	registers map[uint32]operand // by word
	words     []string
}

var errUnsupported = errors.New("not supported")

// expr writes what an expression does, or records what it loads into a register.
func (w *ruleText) expr(x *listedExpr) error {
	handle, known := map[string]func(*listedExpr) error{
		"payload": w.payload, "meta": w.meta, "ct": w.ct, "fib": w.fib, "socket": w.socket, "numgen": w.numgen, "hash": w.hash,
		"immediate": w.immediate, "bitwise": w.bitwise, "cmp": w.cmp, "lookup": w.lookup, "dynset": w.dynset,
		"notrack": w.notrack, "nat": w.nat, "masq": w.masq, "reject": w.reject, "tproxy": w.tproxy,
	}[x.name]
	if !known {
		return errUnsupported
	}
	return cmp.Or(handle(x), x.done())
}

func (w *ruleText) write(format string, args ...any) {
	w.words = append(w.words, fmt.Sprintf(format, args...))
}

// registerWord returns the number of a register's first word.
func registerWord(register uint64) uint32 {
	if register >= unix.NFT_REG32_00 {
		return uint32(register - unix.NFT_REG32_00)
	}
	return uint32(register-unix.NFT_REG_1) * 4
}

// load records what is loaded into a register.
func (w *ruleText) load(register uint64, o operand) error {
	if o.text == "" {
		return errUnsupported
	}
	w.registers[registerWord(register)] = o
	return nil
}

// take removes the operands in a register and all following ones, and returns them as one
// operand. A rule uses each value once.
func (w *ruleText) take(register uint64) operand {
	var parts []operand
	for _, at := range slices.Sorted(maps.Keys(w.registers)) {
		if at >= registerWord(register) {
			parts = append(parts, w.registers[at])
			delete(w.registers, at)
		}
	}
	if len(parts) == 1 {
		return parts[0]
	}
	var texts []string
	for _, o := range parts {
		text := o.expression()
		if o.mask != nil {
			text = "(" + text + ")"
		}
		texts = append(texts, text)
	}
	return operand{text: strings.Join(texts, " . ")}
}

// expression returns the text of an operand with its mask and inversion.
func (o operand) expression() string {
	if len(o.mask) != 4 {
		return o.text
	}
	switch keep, flip := o.number(o.mask), o.number(o.xor); {
	case flip == 0:
		return fmt.Sprintf("%s & 0x%08x", o.text, keep)
	case keep == ^flip:
		return fmt.Sprintf("%s | 0x%08x", o.text, flip)
	case keep&flip == 0:
		return fmt.Sprintf("%s & 0x%08x | 0x%08x", o.text, keep, flip)
	default:
		return fmt.Sprintf("%s & 0x%08x ^ 0x%08x", o.text, keep, flip)
	}
}

// hostNumber decodes up to four bytes in host byte order.
func hostNumber(b []byte) uint32 {
	return binary.NativeEndian.Uint32(append(slices.Clip(b[:min(4, len(b))]), 0, 0, 0, 0))
}

// number returns what the operand is masked or compared with.
func (o operand) number(b []byte) uint32 {
	if o.wire && len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return hostNumber(b)
}

func numberText(b []byte) string { return fmt.Sprintf("0x%0*x", 2*min(4, len(b)), hostNumber(b)) }

func decimalText(b []byte) string {
	return fmt.Sprint(binary.BigEndian.Uint32(append(make([]byte, 4-min(4, len(b))), b[:min(4, len(b))]...)))
}

func protocolText(b []byte) string {
	if len(b) != 1 {
		return numberText(b)
	}
	return Proto.text(b)
}

// interfaceText returns an interface's name. A name that does not end with a zero byte is a
// prefix.
func interfaceText(b []byte) string {
	if name, _, ends := bytes.Cut(b, []byte{0}); ends {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q", string(b)+"*")
}

func addressText(b []byte) string {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return numberText(b)
	}
	return a.String()
}

func (w *ruleText) payload(x *listedExpr) error {
	type field struct{ base, offset, length uint64 }
	source, length := uint64(12), uint64(4)
	if w.family == IP6 {
		source, length = 8, 16
	}
	fields := map[field]operand{
		{unix.NFT_PAYLOAD_NETWORK_HEADER, source, length}:          {text: w.family.String() + " saddr", value: addressText},
		{unix.NFT_PAYLOAD_NETWORK_HEADER, source + length, length}: {text: w.family.String() + " daddr", value: addressText},
		{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2}:                  {text: "th sport", value: decimalText},
		{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2}:                  {text: "th dport", value: decimalText},
		{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4}:                  {text: "@th,0,32", wire: true}, // both ports
		{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1}:                 {text: "tcp flags"},
	}
	if w.family == IP {
		fields[field{unix.NFT_PAYLOAD_NETWORK_HEADER, 9, 1}] = operand{text: "ip protocol", value: protocolText}
	}
	f := field{x.number(unix.NFTA_PAYLOAD_BASE), x.number(unix.NFTA_PAYLOAD_OFFSET), x.number(unix.NFTA_PAYLOAD_LEN)}
	return w.load(x.number(unix.NFTA_PAYLOAD_DREG), fields[f])
}

func (w *ruleText) meta(x *listedExpr) error {
	o := map[uint64]operand{
		unix.NFT_META_PRIORITY: {text: "meta priority"},
		unix.NFT_META_MARK:     {text: "meta mark"},
		unix.NFT_META_L4PROTO:  {text: "meta l4proto", value: protocolText},
		unix.NFT_META_PKTTYPE:  {text: "meta pkttype", value: decimalText},
		unix.NFT_META_IIFNAME:  {text: "iifname", value: interfaceText},
	}[x.number(unix.NFTA_META_KEY)]
	return w.loadOrSet(o, x.number(unix.NFTA_META_DREG), x.number(unix.NFTA_META_SREG))
}

func (w *ruleText) ct(x *listedExpr) error {
	o := map[uint64]operand{
		unix.NFT_CT_STATE:     {text: "ct state", flags: map[uint32]string{expr.CtStateBitNEW: "new"}},
		unix.NFT_CT_STATUS:    {text: "ct status", flags: map[uint32]string{1 << 5: "dnat"}}, // IPS_DST_NAT
		unix.NFT_CT_MARK:      {text: "ct mark"},
		unix.NFT_CT_DIRECTION: {text: "ct direction", value: directionText},
	}[x.number(unix.NFTA_CT_KEY)]
	return w.loadOrSet(o, x.number(unix.NFTA_CT_DREG), x.number(unix.NFTA_CT_SREG))
}

func directionText(b []byte) string {
	if hostNumber(b) == 0 { // IP_CT_DIR_ORIGINAL
		return "original"
	}
	return "reply"
}

// loadOrSet records that o is loaded into the register to or, if from is not 0, writes that
// it is set to the value of the register from.
func (w *ruleText) loadOrSet(o operand, to, from uint64) error {
	if from == 0 {
		return w.load(to, o)
	}
	w.write("%s set %s", o.text, w.take(from).expression())
	return nil
}

func (w *ruleText) fib(x *listedExpr) error {
	texts := map[uint64]string{unix.NFTA_FIB_F_SADDR: "fib saddr type", unix.NFTA_FIB_F_DADDR: "fib daddr type"}
	o := operand{text: texts[x.number(unix.NFTA_FIB_FLAGS)], value: func(b []byte) string {
		if hostNumber(b) == unix.RTN_LOCAL {
			return "local"
		}
		return numberText(b)
	}}
	if x.number(unix.NFTA_FIB_RESULT) != unix.NFT_FIB_RESULT_ADDRTYPE {
		return errUnsupported
	}
	return w.load(x.number(unix.NFTA_FIB_DREG), o)
}

func (w *ruleText) socket(x *listedExpr) error {
	o := map[uint64]operand{
		expr.NFT_SOCKET_TRANSPARENT: {text: "socket transparent", value: decimalText}, expr.NFT_SOCKET_MARK: {text: "socket mark"},
	}[x.number(expr.NFTA_SOCKET_KEY)]
	return w.load(x.number(expr.NFTA_SOCKET_DREG), o)
}

func (w *ruleText) numgen(x *listedExpr) error {
	method, known := map[uint64]string{unix.NFT_NG_INCREMENTAL: "inc", unix.NFT_NG_RANDOM: "random"}[x.number(unix.NFTA_NG_TYPE)]
	if !known {
		return errUnsupported
	}
	text := fmt.Sprintf("numgen %s mod %d offset 0x%08x", method, x.number(unix.NFTA_NG_MODULUS), x.number(unix.NFTA_NG_OFFSET))
	return w.load(x.number(unix.NFTA_NG_DREG), operand{text: text})
}

func (w *ruleText) hash(x *listedExpr) error {
	x.number(unix.NFTA_HASH_LEN) // implied by what was loaded
	text := fmt.Sprintf("jhash %s mod %d seed %#x offset 0x%08x", w.take(x.number(unix.NFTA_HASH_SREG)).expression(),
		x.number(unix.NFTA_HASH_MODULUS), x.number(unix.NFTA_HASH_SEED), x.number(unix.NFTA_HASH_OFFSET))
	return w.load(x.number(unix.NFTA_HASH_DREG), operand{text: text})
}

func (w *ruleText) immediate(x *listedExpr) error {
	to, data := x.number(unix.NFTA_IMMEDIATE_DREG), x.nested(unix.NFTA_IMMEDIATE_DATA)
	if to != unix.NFT_REG_VERDICT {
		b := data.bytes(unix.NFTA_DATA_VALUE)
		return w.load(to, operand{text: numberText(b), data: b})
	}
	verdict := data.nested(unix.NFTA_DATA_VERDICT)
	code, chain := int32(verdict.number(unix.NFTA_VERDICT_CODE)), verdict.string(unix.NFTA_VERDICT_CHAIN)
	name := map[int32]string{
		unix.NFT_JUMP: "jump ", unix.NFT_GOTO: "goto ", unix.NFT_RETURN: "return", policyAccept: "accept", int32(Drop) - 1: "drop",
	}[code]
	if name == "" {
		return errUnsupported
	}
	w.write("%s%s", name, chain)
	return nil
}

// registerBytes is the size of all registers together.
const registerBytes = 64

func (w *ruleText) bitwise(x *listedExpr) error {
	from, to, length := x.number(unix.NFTA_BITWISE_SREG), x.number(unix.NFTA_BITWISE_DREG), x.number(unix.NFTA_BITWISE_LEN)
	o := w.registers[registerWord(from)]
	if from != to || o.mask != nil || length > registerBytes {
		return errUnsupported
	}
	o.mask, o.xor = make([]byte, length), make([]byte, length) // zeros may have been left out
	copy(o.mask, x.nested(unix.NFTA_BITWISE_MASK).bytes(unix.NFTA_DATA_VALUE))
	copy(o.xor, x.nested(unix.NFTA_BITWISE_XOR).bytes(unix.NFTA_DATA_VALUE))
	return w.load(to, o)
}

func (w *ruleText) cmp(x *listedExpr) error {
	o, data := w.take(x.number(unix.NFTA_CMP_SREG)), x.nested(unix.NFTA_CMP_DATA).bytes(unix.NFTA_DATA_VALUE)
	not := map[uint64]string{unix.NFT_CMP_EQ: "", unix.NFT_CMP_NEQ: "!= "}
	op := x.number(unix.NFTA_CMP_OP)
	no, known := not[op]
	switch name := o.flags[hostNumber(o.mask)]; {
	case !known, o.text == "":
		return errUnsupported
	case name != "" && op == unix.NFT_CMP_NEQ && hostNumber(data) == 0:
		w.write("%s %s", o.text, name)
	case o.mask == nil && o.value != nil:
		w.write("%s %s%s", o.text, no, o.value(data))
	case o.mask != nil && o.value != nil: // an address
		length, err := prefixLength(o.mask)
		if err != nil {
			return err
		}
		w.write("%s %s%s/%d", o.text, no, o.value(data), length)
	case len(o.mask) == 1: // TCP flags
		w.write("%s & %s %s %s", o.text, numberText(o.mask), cmp.Or(strings.TrimSpace(no), "=="), numberText(data))
	default:
		w.write("%s %s 0x%0*x", o.expression(), cmp.Or(strings.TrimSpace(no), "=="), 2*min(4, len(data)), o.number(data))
	}
	return nil
}

func prefixLength(mask []byte) (n int, err error) {
	for _, b := range mask {
		n += bits.OnesCount8(b)
	}
	if all := bytes.Repeat([]byte{0xff}, n/8); !bytes.HasPrefix(mask, all) || n%8 != 0 && mask[n/8] != 0xff<<(8-n%8) {
		return 0, errUnsupported
	}
	return n, nil
}

func (w *ruleText) lookup(x *listedExpr) error {
	key, set := w.take(x.number(unix.NFTA_LOOKUP_SREG)).expression(), "@"+x.string(unix.NFTA_LOOKUP_SET)
	if set == "@" {
		if set = w.ranges.text(w.family); w.ranges == "" {
			return errUnsupported
		}
	}
	_, isMap := x.attrs[unix.NFTA_LOOKUP_DREG]
	to, inverted := x.number(unix.NFTA_LOOKUP_DREG), x.number(unix.NFTA_LOOKUP_FLAGS) != 0
	x.number(unix.NFTA_LOOKUP_SET_ID)
	switch {
	case isMap && to != 0:
		return w.load(to, operand{text: key + " map " + set})
	case isMap:
		w.write("%s vmap %s", key, set)
	case inverted:
		w.write("%s != %s", key, set)
	default:
		w.write("%s %s", key, set)
	}
	return nil
}

func (w *ruleText) dynset(x *listedExpr) error {
	op := map[uint64]string{unix.NFT_DYNSET_OP_ADD: "add", unix.NFT_DYNSET_OP_UPDATE: "update", 2: "delete"}[x.number(unix.NFTA_DYNSET_OP)]
	value := ""
	if from := x.number(unix.NFTA_DYNSET_SREG_DATA); from != 0 {
		value = " : " + w.take(from).expression()
	}
	timeout := ""
	if ms := x.number(unix.NFTA_DYNSET_TIMEOUT); ms != 0 {
		timeout = " timeout " + (time.Duration(ms) * time.Millisecond).String()
	}
	counter := ""
	if inner := x.nested(unix.NFTA_DYNSET_EXPR); inner.name == "counter" {
		counter = " counter"
	} else if inner.name != "" {
		return errUnsupported
	}
	x.number(unix.NFTA_DYNSET_SET_ID)
	key, set := w.take(x.number(unix.NFTA_DYNSET_SREG_KEY)).expression(), x.string(unix.NFTA_DYNSET_SET_NAME)
	w.write("%s @%s { %s%s%s%s }", op, set, key, timeout, counter, value)
	return nil
}

func (w *ruleText) notrack(*listedExpr) error {
	w.write("notrack")
	return nil
}

func (w *ruleText) nat(x *listedExpr) error {
	kind, family := x.number(unix.NFTA_NAT_TYPE), x.number(unix.NFTA_NAT_FAMILY)
	addr, port, last := x.number(unix.NFTA_NAT_REG_ADDR_MIN), x.number(unix.NFTA_NAT_REG_PROTO_MIN), x.number(unix.NFTA_NAT_REG_PROTO_MAX)
	flags := x.number(unix.NFTA_NAT_FLAGS) // of dnat they say only whether there is an address and a port
	if kind == unix.NFT_NAT_SNAT && addr == 0 && last != 0 {
		high, low := w.take(last).data, w.take(port).data
		if len(low) != 2 || len(high) != 2 || flags&fullyRandom == 0 {
			return errUnsupported
		}
		w.write("snat to :%s-%s fully-random", decimalText(low), decimalText(high))
		return nil
	}
	o := w.take(addr)
	if kind != unix.NFT_NAT_DNAT || family != uint64(w.family) || last != 0 || port != 0 && !strings.Contains(o.text, " map @") {
		return errUnsupported
	}
	if o.data != nil {
		o.text = addressText(o.data)
	}
	w.write("dnat %v to %s", w.family, o.text)
	return nil
}

const fullyRandom = 1 << 4 // NF_NAT_RANGE_PROTO_RANDOM_FULLY

func (w *ruleText) masq(x *listedExpr) error {
	if x.number(unix.NFTA_MASQ_FLAGS) != fullyRandom {
		return errUnsupported
	}
	w.write("masquerade fully-random")
	return nil
}

// reject supports only the ICMP code that nft uses by default, and TCP resets.
func (w *ruleText) reject(x *listedExpr) error {
	portUnreachable := map[Family]uint64{IP: 3, IP6: 4}[w.family]
	switch kind := x.number(unix.NFTA_REJECT_TYPE); {
	case kind == unix.NFT_REJECT_TCP_RST:
		w.write("reject with tcp reset")
	case kind == unix.NFT_REJECT_ICMP_UNREACH && x.number(unix.NFTA_REJECT_ICMP_CODE) == portUnreachable:
		w.write("reject")
	default:
		return errUnsupported
	}
	return nil
}

func (w *ruleText) tproxy(x *listedExpr) error {
	port := w.take(x.number(expr.NFTA_TPROXY_REG_PORT)).data
	addr, ok := netip.AddrFromSlice(w.take(x.number(expr.NFTA_TPROXY_REG_ADDR)).data)
	if x.number(expr.NFTA_TPROXY_FAMILY) != uint64(w.family) || len(port) != 2 || !ok {
		return errUnsupported
	}
	w.write("tproxy to %v", netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port)))
	return nil
}
