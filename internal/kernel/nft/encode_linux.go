package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Numbers of the netlink interface that golang.org/x/sys does not name.
const (
	subsystem      = unix.NFNL_SUBSYS_NFTABLES << 8
	tableAttribute = 1 // the table's name, in messages about whatever is in it

	setFlagConcat    = 0x80
	setDescConcat    = 2
	setElemKeyEnd    = 10
	setCount         = 20
	chainUserdata    = 12
	tableUserdata    = 6
	udataComment     = 0 // of tables, chains and rules
	udataSetByteKey  = 0
	udataSetByteData = 1
	udataSetComment  = 7
	byteOrderHost    = 1
	byteOrderNet     = 2
	policyAccept     = 1
	verdictType      = 0xffffff00 // NFT_DATA_VERDICT
)

// tableComment marks our tables for whoever lists them.
const tableComment = "written by sluice; edits are undone"

// encode writes the batch, elements of at most limit bytes a message.
func encode(w *netlink.Builder, b *Batch, limit int) []span {
	bound := netlink.Netfilter(0, unix.NFNL_SUBSYS_NFTABLES)
	w.Reset()
	w.Begin(unix.NFNL_MSG_BATCH_BEGIN, 0, bound)
	spans := make([]span, 0, len(b.Ops)/64+8)
	for i := 0; i < len(b.Ops); {
		n := run(b.Ops[i:], limit)
		spans = append(spans, span{encodeOps(w, b.Ops[i:i+n]), i})
		i += n
	}
	w.Begin(unix.NFNL_MSG_BATCH_END, 0, bound)
	return spans
}

// run returns how many operations from the first on fit one message with it:
// those on elements of one set.
func run(ops []Op, limit int) int {
	if ops[0].Kind != AddElement && ops[0].Kind != DeleteElement {
		return 1
	}
	bytes := ops[0].bytes()
	for n := 1; n < len(ops); n++ {
		bytes += ops[n].bytes()
		if ops[n].Kind != ops[0].Kind || ops[n].Set != ops[0].Set || bytes > limit {
			return n
		}
	}
	return len(ops)
}

// encodeOps writes one message. Each begins with the names of a table and of what
// it is about.
func encodeOps(w *netlink.Builder, ops []Op) uint32 {
	o := &ops[0]
	k := kinds[o.Kind]
	seq := w.Begin(subsystem|k.message, k.flags, netlink.Netfilter(o.Table.Family, 0))
	w.Text(tableAttribute, o.Table.Name)
	if k.name != 0 {
		w.Text(k.name, o.name())
	}
	switch o.Kind {
	case AddTable:
		w.Raw(tableUserdata, udata(udataComment, tableComment+"\x00"))
	case AddChain:
		encodeChain(w, o.Chain)
	case AddRule:
		encodeRule(w, o)
	case AddSet:
		encodeSet(w, o.Set, seq)
	case AddElement, DeleteElement:
		list := w.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for i := range ops {
			at := w.Open(unix.NFTA_LIST_ELEM)
			encodeElement(w, &ops[i].Element, o.Kind == AddElement)
			w.Close(at)
		}
		w.Close(list)
	}
	return seq
}

func encodeChain(w *netlink.Builder, c *Chain) {
	if h := c.Hook; h != nil {
		w.Nest(unix.NFTA_CHAIN_HOOK, func() {
			w.U32(unix.NFTA_HOOK_HOOKNUM, h.Number)
			w.U32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
		})
		w.U32(unix.NFTA_CHAIN_POLICY, policyAccept)
		w.Text(unix.NFTA_CHAIN_TYPE, h.Type)
	}
	if c.Comment != "" {
		w.Raw(chainUserdata, udata(udataComment, c.Comment+"\x00"))
	}
}

func encodeRule(w *netlink.Builder, o *Op) {
	w.Nest(unix.NFTA_RULE_EXPRESSIONS, func() {
		for _, x := range o.Rule.Exprs {
			b, err := expr.Marshal(byte(o.Table.Family), x)
			if err != nil {
				w.Fail(fmt.Errorf("encode rule of chain %s: %w", o.Chain.Name, err))
			}
			w.Nest(unix.NFTA_LIST_ELEM, func() { w.Append(b) })
		}
	})
	if o.Rule.Comment != "" {
		w.Raw(unix.NFTA_RULE_USERDATA, udata(udataComment, o.Rule.Comment+"\x00"))
	}
}

func encodeSet(w *netlink.Builder, s *Set, id uint32) {
	w.U32(unix.NFTA_SET_FLAGS, s.flags())
	w.U32(unix.NFTA_SET_KEY_TYPE, typeID(s.Key))
	w.U32(unix.NFTA_SET_KEY_LEN, uint32(s.KeyLen()))
	if s.isMap() {
		w.U32(unix.NFTA_SET_DATA_TYPE, s.dataType())
		w.U32(unix.NFTA_SET_DATA_LEN, uint32(s.DataLen()))
	}
	w.U32(unix.NFTA_SET_ID, id)
	if s.Size > 0 || s.concatenatesRanges() {
		w.Nest(unix.NFTA_SET_DESC, func() {
			if s.Size > 0 {
				w.U32(unix.NFTA_SET_DESC_SIZE, s.Size)
			}
			if s.concatenatesRanges() {
				w.Nest(setDescConcat, func() {
					for _, t := range s.Key {
						w.Nest(unix.NFTA_LIST_ELEM, func() { w.U32(1, uint32(t.Len())) })
					}
				})
			}
		})
	}
	w.Raw(unix.NFTA_SET_USERDATA, setUserdata(s))
}

// setUserdata says what only the nft program cares about: in which byte order
// to print, and a comment.
func setUserdata(s *Set) string {
	out := udata(udataSetByteKey, byteOrder(s.Key))
	if s.Data != nil {
		out += udata(udataSetByteData, byteOrder(s.Data))
	}
	if s.Comment != "" {
		out += udata(udataSetComment, s.Comment+"\x00")
	}
	return out
}

// byteOrder returns the order of a single part; the nft program knows that of
// a concatenation's parts by their types.
func byteOrder(types []Type) string {
	order := uint32(byteOrderNet)
	if len(types) == 1 && types[0] == ClassID {
		order = byteOrderHost
	}
	return string(binary.NativeEndian.AppendUint32(nil, order))
}

// udata returns one type-length-value of the nft program's userdata.
func udata(kind byte, value string) string { return string([]byte{kind, byte(len(value))}) + value }

func encodeElement(w *netlink.Builder, e *Element, withData bool) {
	encodeValue(w, unix.NFTA_SET_ELEM_KEY, e.Key)
	if e.KeyEnd != "" {
		encodeValue(w, setElemKeyEnd, e.KeyEnd)
	}
	switch {
	case !withData:
	case e.Verdict.Code != 0:
		data := w.Open(unix.NFTA_SET_ELEM_DATA)
		verdict := w.Open(unix.NFTA_DATA_VERDICT)
		w.U32(unix.NFTA_VERDICT_CODE, verdictCodes[e.Verdict.Code])
		if e.Verdict.Chain != "" {
			w.Text(unix.NFTA_VERDICT_CHAIN, e.Verdict.Chain)
		}
		w.Close(verdict)
		w.Close(data)
	case e.Data != "":
		encodeValue(w, unix.NFTA_SET_ELEM_DATA, e.Data)
	}
}

func encodeValue(w *netlink.Builder, kind uint16, v string) {
	at := w.Open(kind)
	w.Raw(unix.NFTA_DATA_VALUE, v)
	w.Close(at)
}

// verdictCodes are the kernel's numbers for verdicts.
var verdictCodes = [...]uint32{Drop: 0, Accept: 1, Goto: 0xfffffffc}
