package nftables

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// rule builds one rule. Its methods append what the nft program would write
// from left to right; values are loaded into registers from the first on.
type rule struct {
	t     *table
	exprs []expr.Any
	next  uint32 // the next free register, counted in words
}

func (t *table) rule() *rule { return &rule{t: t} }

// firstRegister is the register in which every list of values begins.
var firstRegister = nft.Register(0)

func (r *rule) add(x ...expr.Any) *rule { r.exprs = append(r.exprs, x...); return r }

// take reserves registers for n words and returns the first one's number.
func (r *rule) take(words uint32) uint32 {
	n := nft.Register(r.next)
	r.next += words
	return n
}

// done begins a new list of values in the first register.
func (r *rule) done() *rule { r.next = 0; return r }

func (r *rule) words() uint32 { return uint32(r.t.family.Bits() / 32) }

// load loads the source or destination address.
func (r *rule) load(source bool) *rule {
	offset, length := uint32(16), uint32(4)
	if source {
		offset = 12
	}
	if r.t.family == proxy.IPv6 {
		offset, length = 24, 16
		if source {
			offset = 8
		}
	}
	return r.add(&expr.Payload{
		DestRegister: r.take(r.words()), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length,
	})
}

// protocol and port load those of the packet.
func (r *rule) protocol() *rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r.take(1)})
}

func (r *rule) port() *rule {
	return r.add(&expr.Payload{DestRegister: r.take(1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
}

// frontend loads the key of the packet in the maps of frontends.
func (r *rule) frontend(s *frontendMaps) *rule {
	if s.byAddress {
		r.load(false)
	}
	return r.protocol().port()
}

// slot loads a random number of n from an offset on.
func (r *rule) slot(n, offset uint32) *rule {
	return r.add(&expr.Numgen{Register: r.take(1), Modulus: n, Type: unix.NFT_NG_RANDOM, Offset: offset})
}

// in matches if what is loaded is in a set.
func (r *rule) in(s *nft.Set) *rule { return r.lookup(s, false) }

// notIn matches if what is loaded is not in a set.
func (r *rule) notIn(s *nft.Set) *rule { return r.lookup(s, true) }

func (r *rule) lookup(s *nft.Set, invert bool) *rule {
	r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name, Invert: invert})
	return r.done()
}

// vmap takes the verdict that a map has for what is loaded, if any.
func (r *rule) vmap(s *nft.Set) *rule {
	r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name, IsDestRegSet: true})
	return r.done()
}

// dnatBy sends the connection where a map says for what is loaded.
func (r *rule) dnatBy(s *nft.Set) *rule {
	r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name, DestRegister: firstRegister, IsDestRegSet: true})
	return r.done().dnat(firstRegister, nft.Register(r.words()))
}

// dnat sends the connection to the address and port in registers.
func (r *rule) dnat(addr, port uint32) *rule {
	return r.add(&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(r.t.Table.Family),
		RegAddrMin: addr, RegProtoMin: port, Specified: true,
	})
}

// within matches a source or destination within a prefix.
func (r *rule) within(source bool, p netip.Prefix) *rule {
	if p.Bits() == 0 {
		return r
	}
	r.load(source)
	if p.Bits() < p.Addr().BitLen() {
		mask := prefixMask(p)
		r.add(&expr.Bitwise{
			SourceRegister: firstRegister, DestRegister: firstRegister, Len: uint32(len(mask)),
			Mask: mask, Xor: make([]byte, len(mask)),
		})
	}
	r.add(&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: p.Masked().Addr().AsSlice()})
	return r.done()
}

func prefixMask(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// inBy matches what came in on an interface, or on one whose name begins so.
func (r *rule) inBy(name string, isPrefix bool) *rule {
	data := []byte(name)
	if !isPrefix {
		data = make([]byte, unix.IFNAMSIZ)
		copy(data, name)
	}
	r.add(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: data})
	return r.done()
}

// local matches a source or destination that is an address of this node.
func (r *rule) local(source bool) *rule {
	r.add(&expr.Fib{Register: firstRegister, ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: hostWord(unix.RTN_LOCAL)})
	return r.done()
}

// newFlow matches the first packet of a flow.
func (r *rule) newFlow() *rule { return r.conntrack(expr.CtKeySTATE, expr.CtStateBitNEW) }

// translated matches a flow whose destination was translated.
func (r *rule) translated() *rule {
	const statusDNAT = 1 << 5 // IPS_DST_NAT
	return r.conntrack(expr.CtKeySTATUS, statusDNAT)
}

// conntrack matches flows that have a bit set.
func (r *rule) conntrack(key expr.CtKey, bit uint32) *rule {
	r.add(&expr.Ct{Key: key, Register: firstRegister})
	return r.masked(bit)
}

// marked matches packets marked for masquerading.
func (r *rule) marked() *rule {
	r.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister})
	return r.masked(r.t.mark)
}

// masked matches if the first register has one of the bits set.
func (r *rule) masked(bits uint32) *rule {
	r.add(&expr.Bitwise{
		SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: hostWord(bits), Xor: hostWord(0),
	}, &expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: hostWord(0)})
	return r.done()
}

// setMark sets or clears the mark for masquerading and leaves other bits alone.
func (r *rule) setMark(on bool) *rule {
	var xor uint32
	if on {
		xor = r.t.mark
	}
	return r.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{
			SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: hostWord(^r.t.mark), Xor: hostWord(xor),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister, SourceRegister: true})
}

// priority loads the packet's priority, which is where the first packet of a
// connection carries what one lookup found to the next: a lookup within the key
// of another would make the nft program of Debian 12 abort when it lists.
func (r *rule) priority() *rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: r.take(1)})
}

// maskedPriority loads some bits of the packet's priority.
func (r *rule) maskedPriority(mask uint32) *rule {
	at := r.take(1)
	return r.add(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: at},
		&expr.Bitwise{SourceRegister: at, DestRegister: at, Len: 4, Mask: hostWord(mask), Xor: hostWord(0)})
}

// priorityBy sets the packet's priority to what a map has for what is loaded.
// If it has nothing, the rule ends and the priority stays.
func (r *rule) priorityBy(s *nft.Set) *rule {
	return r.add(
		&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name, DestRegister: firstRegister, IsDestRegSet: true},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstRegister, SourceRegister: true}).done()
}

// setPriority keeps some bits of the packet's priority and sets others.
func (r *rule) setPriority(keep, set uint32) *rule {
	return r.add(
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: hostWord(keep), Xor: hostWord(set)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstRegister, SourceRegister: true}).done()
}

// slotToPriority sets the packet's priority to a random number of n from an
// offset on.
func (r *rule) slotToPriority(n, offset uint32) *rule {
	return r.slot(n, offset).add(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstRegister, SourceRegister: true}).done()
}

// priorityIsID matches if the packet's priority is the id of an endpoint, and not
// the number of a list, a class or a slot.
func (r *rule) priorityIsID(half uint32) *rule {
	r.priority().add(
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: hostWord(firstClass), Xor: hostWord(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: hostWord(firstClass)}).done()
	return r.priorityHas(half - 1)
}

// priorityIsSlot matches if the packet's priority is the number of a slot.
func (r *rule) priorityIsSlot() *rule {
	return r.priority().add(
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: hostWord(slots), Xor: hostWord(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: hostWord(slots)}).done()
}

// clearPriority sets the packet's priority to none.
func (r *rule) clearPriority() *rule {
	return r.add(&expr.Immediate{Register: firstRegister, Data: hostWord(0)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstRegister, SourceRegister: true}).done()
}

// priorityHas matches packets whose priority has one of the bits set.
func (r *rule) priorityHas(bits uint32) *rule {
	r.add(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstRegister})
	return r.masked(bits)
}

// remember notes the packet's priority, an endpoint's id, for the client and
// the list that the id is of. If something is noted already, it stays and lasts
// longer.
func (r *rule) remember(s *nft.Set, mask uint32, timeout time.Duration) *rule {
	r.load(true).maskedPriority(mask)
	id := nft.Register(r.next)
	return r.priority().add(&expr.Dynset{
		SrcRegKey: firstRegister, SrcRegData: id, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout,
	}).done()
}

// forget deletes what is noted for the client and the list in the packet's
// priority. The kernel wants a value all the same.
func (r *rule) forget(s *nft.Set) *rule {
	r.load(true).priority()
	none := r.take(1)
	return r.add(&expr.Immediate{Register: none, Data: hostWord(0)}, &expr.Dynset{
		SrcRegKey: firstRegister, SrcRegData: none, SetName: s.Name, Operation: dynsetDelete,
	}).done()
}

const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE

func (r *rule) masquerade() *rule { return r.add(&expr.Masq{FullyRandom: true}) }

func (r *rule) reject() *rule {
	code := uint8(3) // ICMP port unreachable
	if r.t.family == proxy.IPv6 {
		code = 4 // ICMPv6 port unreachable
	}
	return r.add(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
}

func (r *rule) jump(chain string) *rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

func (r *rule) goTo(chain string) *rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

func (r *rule) accept() *rule { return r.add(&expr.Verdict{Kind: expr.VerdictAccept}) }
func (r *rule) drop() *rule   { return r.add(&expr.Verdict{Kind: expr.VerdictDrop}) }
func (r *rule) back() *rule   { return r.add(&expr.Verdict{Kind: expr.VerdictReturn}) }

// comment finishes the rule with a comment that says why it is there.
func (r *rule) comment(why string) *nft.Rule { return &nft.Rule{Exprs: r.exprs, Comment: why} }

// hostWord returns a number as it is in a register.
func hostWord(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// word reads a number as hostWord writes it.
func word(s string) (uint32, bool) {
	if len(s) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32([]byte(s)), true
}
