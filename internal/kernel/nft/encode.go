package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Numbers of the netlink interface that golang.org/x/sys does not name.
const (
	setFlagConcat    = 0x80
	setDescConcat    = 2
	setElemKeyEnd    = 10
	setCount         = 20
	chainUserdata    = 12
	tableUserdata    = 6
	udataRuleComment = 0
	udataComment     = 0 // of tables and chains
	udataSetByteKey  = 0
	udataSetByteData = 1
	udataSetComment  = 7
	byteOrderHost    = 1
	byteOrderNet     = 2
)

// tableComment marks our tables for whoever lists them.
const tableComment = "written by sluice; edits are undone"

// encoder writes netlink messages into one buffer that is used again.
type encoder struct {
	buf []byte
	seq uint32
	msg int // where the current message begins
	err error
}

func (e *encoder) reset() { e.buf, e.err = e.buf[:0], nil }

// begin starts a message and returns its sequence number.
func (e *encoder) begin(kind uint16, flags uint16, family Family, resID uint16) uint32 {
	e.seq++
	e.msg = len(e.buf)
	e.buf = append(e.buf, 0, 0, 0, 0) // length, set by end
	e.buf = binary.NativeEndian.AppendUint16(e.buf, kind)
	e.buf = binary.NativeEndian.AppendUint16(e.buf, flags|unix.NLM_F_REQUEST)
	e.buf = binary.NativeEndian.AppendUint32(e.buf, e.seq)
	e.buf = binary.NativeEndian.AppendUint32(e.buf, 0)
	e.buf = append(e.buf, byte(family), unix.NFNETLINK_V0)
	e.buf = binary.BigEndian.AppendUint16(e.buf, resID)
	return e.seq
}

func (e *encoder) end() {
	binary.NativeEndian.PutUint32(e.buf[e.msg:], uint32(len(e.buf)-e.msg))
}

// open starts a nested attribute; close ends it.
func (e *encoder) open(kind uint16) int {
	at := len(e.buf)
	e.buf = append(e.buf, 0, 0)
	e.buf = binary.NativeEndian.AppendUint16(e.buf, kind|unix.NLA_F_NESTED)
	return at
}

func (e *encoder) close(at int) {
	n := len(e.buf) - at
	if n > 0xffff {
		e.err = fmt.Errorf("attribute of %d bytes is longer than netlink can say", n)
	}
	binary.NativeEndian.PutUint16(e.buf[at:], uint16(n))
}

func (e *encoder) head(kind uint16, n int) {
	e.buf = binary.NativeEndian.AppendUint16(e.buf, uint16(4+n))
	e.buf = binary.NativeEndian.AppendUint16(e.buf, kind)
}

func (e *encoder) pad() {
	for len(e.buf)%4 != 0 {
		e.buf = append(e.buf, 0)
	}
}

func (e *encoder) raw(kind uint16, data string) {
	e.head(kind, len(data))
	e.buf = append(e.buf, data...)
	e.pad()
}

func (e *encoder) str(kind uint16, s string) {
	e.head(kind, len(s)+1)
	e.buf = append(e.buf, s...)
	e.buf = append(e.buf, 0)
	e.pad()
}

func (e *encoder) u32(kind uint16, v uint32) {
	e.head(kind, 4)
	e.buf = binary.BigEndian.AppendUint32(e.buf, v)
}

func (e *encoder) nested(kind uint16, body func()) {
	at := e.open(kind)
	body()
	e.close(at)
}

const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8

// op writes the message of one operation other than on elements.
func (e *encoder) op(o *Op) uint32 {
	switch o.Kind {
	case AddTable, DeleteTable:
		return e.table(o)
	case AddChain, FlushChain, DeleteChain:
		return e.chain(o)
	case AddRule:
		return e.rule(o)
	case AddSet, DeleteSet:
		return e.set(o)
	default:
		panic(fmt.Sprintf("operation %v is not encoded here", o.Kind))
	}
}

func (e *encoder) table(o *Op) uint32 {
	kind, flags := uint16(unix.NFT_MSG_NEWTABLE), uint16(unix.NLM_F_CREATE)
	if o.Kind == DeleteTable {
		kind, flags = unix.NFT_MSG_DELTABLE, 0
	}
	seq := e.begin(subsystem|kind, flags, o.Table.Family, 0)
	e.str(unix.NFTA_TABLE_NAME, o.Table.Name)
	if o.Kind == AddTable {
		e.raw(tableUserdata, udata(nil, udataComment, tableComment+"\x00"))
	}
	e.end()
	return seq
}

func (e *encoder) chain(o *Op) uint32 {
	switch o.Kind {
	case FlushChain:
		seq := e.begin(subsystem|unix.NFT_MSG_DELRULE, 0, o.Table.Family, 0)
		e.str(unix.NFTA_RULE_TABLE, o.Table.Name)
		e.str(unix.NFTA_RULE_CHAIN, o.Chain.Name)
		e.end()
		return seq
	case DeleteChain:
		seq := e.begin(subsystem|unix.NFT_MSG_DELCHAIN, 0, o.Table.Family, 0)
		e.str(unix.NFTA_CHAIN_TABLE, o.Table.Name)
		e.str(unix.NFTA_CHAIN_NAME, o.Chain.Name)
		e.end()
		return seq
	}
	seq := e.begin(subsystem|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, o.Table.Family, 0)
	e.str(unix.NFTA_CHAIN_TABLE, o.Table.Name)
	e.str(unix.NFTA_CHAIN_NAME, o.Chain.Name)
	if h := o.Chain.Hook; h != nil {
		e.nested(unix.NFTA_CHAIN_HOOK, func() {
			e.u32(unix.NFTA_HOOK_HOOKNUM, h.Number)
			e.u32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
		})
		e.u32(unix.NFTA_CHAIN_POLICY, 1) // accept
		e.str(unix.NFTA_CHAIN_TYPE, h.Type)
	}
	if o.Chain.Comment != "" {
		e.raw(chainUserdata, udata(nil, udataComment, o.Chain.Comment+"\x00"))
	}
	e.end()
	return seq
}

func (e *encoder) rule(o *Op) uint32 {
	seq := e.begin(subsystem|unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, o.Table.Family, 0)
	e.str(unix.NFTA_RULE_TABLE, o.Table.Name)
	e.str(unix.NFTA_RULE_CHAIN, o.Chain.Name)
	e.nested(unix.NFTA_RULE_EXPRESSIONS, func() {
		for _, x := range o.Rule.Exprs {
			b, err := expr.Marshal(byte(o.Table.Family), x)
			if err != nil {
				e.err = fmt.Errorf("encode rule of chain %s: %w", o.Chain.Name, err)
			}
			e.nested(unix.NFTA_LIST_ELEM, func() { e.buf = append(e.buf, b...); e.pad() })
		}
	})
	if o.Rule.Comment != "" {
		e.raw(unix.NFTA_RULE_USERDATA, udata(nil, udataRuleComment, o.Rule.Comment+"\x00"))
	}
	e.end()
	return seq
}

func (e *encoder) set(o *Op) uint32 {
	s := o.Set
	if o.Kind == DeleteSet {
		seq := e.begin(subsystem|unix.NFT_MSG_DELSET, 0, o.Table.Family, 0)
		e.str(unix.NFTA_SET_TABLE, s.Table.Name)
		e.str(unix.NFTA_SET_NAME, s.Name)
		e.end()
		return seq
	}
	seq := e.begin(subsystem|unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, o.Table.Family, 0)
	e.str(unix.NFTA_SET_TABLE, s.Table.Name)
	e.str(unix.NFTA_SET_NAME, s.Name)
	e.u32(unix.NFTA_SET_FLAGS, setFlags(s))
	e.u32(unix.NFTA_SET_KEY_TYPE, typeID(s.Key))
	e.u32(unix.NFTA_SET_KEY_LEN, uint32(s.KeyLen()))
	switch {
	case s.Verdicts:
		e.u32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
		e.u32(unix.NFTA_SET_DATA_LEN, 0)
	case s.Data != nil:
		e.u32(unix.NFTA_SET_DATA_TYPE, typeID(s.Data))
		e.u32(unix.NFTA_SET_DATA_LEN, uint32(s.DataLen()))
	}
	e.u32(unix.NFTA_SET_ID, seq)
	e.setDesc(s)
	e.raw(unix.NFTA_SET_USERDATA, setUserdata(s))
	e.end()
	return seq
}

func (e *encoder) setDesc(s *Set) {
	if s.Size == 0 && !(s.Interval && len(s.Key) > 1) {
		return
	}
	e.nested(unix.NFTA_SET_DESC, func() {
		if s.Size > 0 {
			e.u32(unix.NFTA_SET_DESC_SIZE, s.Size)
		}
		if !s.Interval || len(s.Key) == 1 {
			return
		}
		e.nested(setDescConcat, func() {
			for _, t := range s.Key {
				e.nested(unix.NFTA_LIST_ELEM, func() { e.u32(1, uint32(t.Len())) })
			}
		})
	})
}

func setFlags(s *Set) uint32 {
	var f uint32
	if s.Interval {
		f |= unix.NFT_SET_INTERVAL
		if len(s.Key) > 1 {
			f |= setFlagConcat
		}
	}
	if s.Data != nil || s.Verdicts {
		f |= unix.NFT_SET_MAP
	}
	if s.Dynamic {
		f |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	return f
}

// setUserdata says what only the nft program cares about: in which byte order
// to print, and a comment.
func setUserdata(s *Set) string {
	var b []byte
	b = append(b, udata(nil, udataSetByteKey, order(byteOrder(s.Key)))...)
	if s.Data != nil {
		b = append(b, udata(nil, udataSetByteData, order(byteOrder(s.Data)))...)
	}
	if s.Comment != "" {
		b = append(b, udata(nil, udataSetComment, s.Comment+"\x00")...)
	}
	return string(b)
}

// byteOrder returns the order of a single part; the nft program knows that of
// a concatenation's parts by their types.
func byteOrder(types []Type) uint32 {
	if len(types) == 1 && types[0] == ClassID {
		return byteOrderHost
	}
	return byteOrderNet
}

func order(o uint32) string { return string(binary.NativeEndian.AppendUint32(nil, o)) }

// udata appends one type-length-value of the nft program's userdata.
func udata(b []byte, kind byte, value string) string {
	b = append(b, kind, byte(len(value)))
	return string(append(b, value...))
}

// elements writes one message that adds or deletes the elements of ops, which
// are all of one kind and set.
func (e *encoder) elements(ops []Op) uint32 {
	o := &ops[0]
	kind, flags := uint16(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_CREATE)
	if o.Kind == DeleteElement {
		kind, flags = unix.NFT_MSG_DELSETELEM, 0
	}
	seq := e.begin(subsystem|kind, flags, o.Table.Family, 0)
	e.str(unix.NFTA_SET_ELEM_LIST_TABLE, o.Table.Name)
	e.str(unix.NFTA_SET_ELEM_LIST_SET, o.Set.Name)
	list := e.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for i := range ops {
		at := e.open(unix.NFTA_LIST_ELEM)
		e.element(&ops[i].Element, o.Kind == AddElement)
		e.close(at)
	}
	e.close(list)
	e.end()
	return seq
}

func (e *encoder) element(el *Element, withData bool) {
	e.value(unix.NFTA_SET_ELEM_KEY, el.Key)
	if el.KeyEnd != "" {
		e.value(setElemKeyEnd, el.KeyEnd)
	}
	if !withData {
		return
	}
	switch {
	case el.Verdict.Code != 0:
		data := e.open(unix.NFTA_SET_ELEM_DATA)
		verdict := e.open(unix.NFTA_DATA_VERDICT)
		e.u32(unix.NFTA_VERDICT_CODE, verdictCode(el.Verdict.Code))
		if el.Verdict.Chain != "" {
			e.str(unix.NFTA_VERDICT_CHAIN, el.Verdict.Chain)
		}
		e.close(verdict)
		e.close(data)
	case el.Data != "":
		e.value(unix.NFTA_SET_ELEM_DATA, el.Data)
	}
}

func (e *encoder) value(kind uint16, v string) {
	at := e.open(kind)
	e.raw(unix.NFTA_DATA_VALUE, v)
	e.close(at)
}

const gotoCode = 0xfffffffc // NFT_GOTO, -4

func verdictCode(c Code) uint32 {
	switch c {
	case Drop:
		return 0
	case Accept:
		return 1
	case Goto:
		return gotoCode
	default:
		panic(fmt.Sprintf("unknown verdict %d", uint8(c)))
	}
}
