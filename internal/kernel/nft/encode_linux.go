package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Numbers of the netlink interface that golang.org/x/sys does not name.
const (
	subsystem      = unix.NFNL_SUBSYS_NFTABLES << 8
	tableAttribute = 1 // the table's name, in messages about any kind of object

	setElemCatchAll  = 2  // NFT_SET_ELEM_CATCHALL
	chainFlags       = 10 // NFTA_CHAIN_FLAGS
	chainBinding     = 4  // NFT_CHAIN_BINDING
	setCount         = 20 // NFTA_SET_COUNT
	tableUserdata    = 6
	tableOwner       = 2 // NFT_TABLE_F_OWNER
	udataComment     = 0 // of tables and rules
	udataSetByteKey  = 0
	udataSetByteData = 1
	udataSetComment  = 7
	byteOrderHost    = 1
	byteOrderNet     = 2
	policyAccept     = 1
)

// tableComment is shown when our tables are listed.
const tableComment = "written by sluice; edits are undone"

// encode writes the batch to w. A message has elements of at most limit bytes, or one
// operation. It returns the sequence number of the batch's first message, and for each
// following message the index of its first operation.
func encode(w *netlink.Builder, b *Batch, limit int) (begin uint32, firsts []int) {
	bound := netlink.Netfilter(0, unix.NFNL_SUBSYS_NFTABLES)
	w.Reset()
	begin = w.Begin(unix.NFNL_MSG_BATCH_BEGIN, 0, bound)
	firsts = make([]int, 0, len(b.Ops)/64+8)
	for i := 0; i < len(b.Ops); {
		n := opsPerMessage(b.Ops[i:], limit)
		encodeOps(w, b.Ops[i:i+n])
		firsts = append(firsts, i)
		i += n
	}
	w.Begin(unix.NFNL_MSG_BATCH_END, 0, bound)
	return begin, firsts
}

// opsPerMessage returns how many operations, starting with the first, fit into one message:
// several only if they have the same kind and are about elements of the same set.
func opsPerMessage(ops []Op, limit int) int {
	bytes := 0
	for n := range ops {
		o, e := &ops[n], &ops[n].Element
		bytes += 40 + len(e.Key) + len(e.KeyEnd) + len(e.Data) + len(e.Verdict.Chain)
		if n > 0 && (o.Kind < AddElement || o.Kind != ops[0].Kind || o.Set != ops[0].Set || bytes > limit) {
			return n
		}
	}
	return len(ops)
}

// encodeAttrs returns the attributes of an operation's message.
func encodeAttrs(o Op) netlink.Attrs {
	var w netlink.Builder
	encodeOps(&w, []Op{o})
	if w.Err != nil {
		panic(w.Err)
	}
	return w.Bytes()[unix.SizeofNlMsghdr+4:]
}

// encodeOps writes one message. It starts with the names of the table and of the object in it.
func encodeOps(w *netlink.Builder, ops []Op) {
	o := &ops[0]
	k := opEncodings[o.Kind]
	w.Begin(subsystem|k.message, k.flags, netlink.Netfilter(o.Table.Family, 0))
	w.Text(tableAttribute, o.Table.Name)
	if k.name != 0 {
		w.Text(k.name, o.name())
	}
	switch o.Kind {
	case AddTable:
		if o.Owned {
			w.U32(unix.NFTA_TABLE_FLAGS, tableOwner)
		}
		w.Raw(tableUserdata, udata(udataComment, tableComment, "\x00"))
	case AddChain:
		encodeChain(w, o.Chain)
	case AddRule:
		encodeRule(w, o)
	case AddSet:
		encodeSet(w, o.Set)
	case AddElement, DeleteElement:
		if o.Set.id != 0 {
			w.U32(unix.NFTA_SET_ELEM_LIST_SET_ID, o.Set.id)
		}
		w.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
			for i := range ops {
				encodeElement(w, &ops[i].Element)
			}
		})
	}
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
}

func encodeRule(w *netlink.Builder, o *Op) {
	w.Nest(unix.NFTA_RULE_EXPRESSIONS, func() {
		for _, x := range o.Rule.Exprs {
			if l, ok := x.(*expr.Lookup); ok && l.SetName == "" && o.Set != nil {
				own := *l
				own.SetName, own.SetID = o.Set.Name, o.Set.id
				x = &own
			}
			b, err := expr.Marshal(byte(o.Table.Family), x)
			if err != nil {
				w.Err = cmp.Or(w.Err, fmt.Errorf("encode %T of rule %q in chain %s: %w", x, o.Rule.Comment, o.Chain.Name, err))
			}
			w.Raw(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, string(b))
		}
	})
	w.Raw(unix.NFTA_RULE_USERDATA, udata(udataComment, o.Rule.Comment, "\x00"))
}

func encodeSet(w *netlink.Builder, s *Set) {
	var flags uint32
	set := func(on bool, f uint32) {
		if on {
			flags |= f
		}
	}
	data := typeID(s.Data)
	if s.Verdicts {
		data = unix.NFT_DATA_VERDICT
	}
	set(s.id != 0, unix.NFT_SET_ANONYMOUS|unix.NFT_SET_CONSTANT|unix.NFT_SET_INTERVAL)
	set(data != 0, unix.NFT_SET_MAP)
	set(s.Dynamic, unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT)
	w.U32(unix.NFTA_SET_FLAGS, flags)
	w.U32(unix.NFTA_SET_KEY_TYPE, typeID(s.Key))
	w.U32(unix.NFTA_SET_KEY_LEN, uint32(s.KeyLen()))
	if data != 0 {
		w.U32(unix.NFTA_SET_DATA_TYPE, data)
		w.U32(unix.NFTA_SET_DATA_LEN, uint32(s.DataLen()))
	}
	w.U32(unix.NFTA_SET_ID, s.id)
	w.Nest(unix.NFTA_SET_DESC, func() {
		if s.Size > 0 {
			w.U32(unix.NFTA_SET_DESC_SIZE, s.Size)
		}
	})
	w.Raw(unix.NFTA_SET_USERDATA, udata(udataSetByteKey, byteOrder(s.Key), ""),
		udata(udataSetByteData, byteOrder(s.Data), ""), udata(udataSetComment, s.Comment, "\x00"))
}

// byteOrder returns the byte order in which the nft program prints a key or value of one
// part. For the parts of a concatenation it derives the order from their types.
func byteOrder(types []Type) string {
	switch {
	case types == nil:
		return ""
	case len(types) == 1 && types[0] == ClassID:
		return string(binary.NativeEndian.AppendUint32(nil, byteOrderHost))
	default:
		return string(binary.NativeEndian.AppendUint32(nil, byteOrderNet))
	}
}

// udata returns a type-length-value triple of userdata, which only the nft program
// interprets. It returns nothing if the value is empty.
func udata(kind byte, value, end string) string {
	if value == "" {
		return ""
	}
	return string([]byte{kind, byte(len(value + end))}) + value + end
}

// encodeElement writes an element. For the kernel, a range is two elements: its first key,
// and an end marker with the key after its last one, if there is such a key.
func encodeElement(w *netlink.Builder, e *Element) {
	w.Nest(unix.NFTA_LIST_ELEM, func() { encodeKey(w, e) })
	if end := nextKey(e.KeyEnd); end != "" {
		w.Nest(unix.NFTA_LIST_ELEM, func() {
			w.U32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
			encodeKey(w, &Element{Key: end})
		})
	}
}

func encodeKey(w *netlink.Builder, e *Element) {
	value := func(kind uint16, v string) {
		if v != "" {
			w.Nest(kind, func() { w.Raw(unix.NFTA_DATA_VALUE, v) })
		}
	}
	if e.Key == "" {
		w.U32(unix.NFTA_SET_ELEM_FLAGS, setElemCatchAll)
	}
	value(unix.NFTA_SET_ELEM_KEY, e.Key)
	value(unix.NFTA_SET_ELEM_DATA, e.Data)
	if e.Verdict.Code != 0 {
		w.Nest(unix.NFTA_SET_ELEM_DATA, func() {
			w.Nest(unix.NFTA_DATA_VERDICT, func() {
				w.U32(unix.NFTA_VERDICT_CODE, uint32(e.Verdict.Code-1))
				if e.Verdict.Chain != "" {
					w.Text(unix.NFTA_VERDICT_CHAIN, e.Verdict.Chain)
				}
			})
		})
	}
}
