package nftables

import (
	"encoding/binary"
	"net"
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
	t      *table
	exprs  []expr.Any
	ranges nft.Ranges
	next   uint32 // the next free register, counted in words
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

func (r *rule) load(source bool) *rule {
	x := &expr.Payload{DestRegister: r.take(r.words()), Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	if r.t.family == proxy.IPv6 {
		x.Offset, x.Len = 24, 16
	}
	if source {
		x.Offset -= x.Len
	}
	return r.add(x)
}

// meta loads what is known of the packet; set stores what was loaded first there.
func (r *rule) meta(k expr.MetaKey) *rule {
	return r.add(&expr.Meta{Key: k, Register: r.take(1)})
}

func (r *rule) set(k expr.MetaKey) *rule {
	return r.add(&expr.Meta{Key: k, Register: firstRegister, SourceRegister: true}).done()
}

// bits keeps some bits of what was loaded last and inverts others.
func (r *rule) bits(keep, invert uint32) *rule {
	at := nft.Register(r.next - 1)
	return r.add(&expr.Bitwise{SourceRegister: at, DestRegister: at, Len: 4, Mask: hostWord(keep), Xor: hostWord(invert)})
}

// is and isNot compare with what was loaded.
func (r *rule) is(data []byte) *rule    { return r.compare(expr.CmpOpEq, data) }
func (r *rule) isNot(data []byte) *rule { return r.compare(expr.CmpOpNeq, data) }

func (r *rule) compare(op expr.CmpOp, data []byte) *rule {
	return r.add(&expr.Cmp{Op: op, Register: firstRegister, Data: data}).done()
}

// has matches if what was loaded has one of the bits set.
func (r *rule) has(bits uint32) *rule { return r.bits(bits, 0).isNot(hostWord(0)) }

// protocol and port load those of the packet.
func (r *rule) protocol() *rule { return r.meta(expr.MetaKeyL4PROTO) }

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

// in matches if what is loaded is in a set.
func (r *rule) in(s *nft.Set) *rule {
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name}).done()
}

// notIn matches if what is loaded is not in the set that the rule has to itself.
func (r *rule) notIn(ranges nft.Ranges) *rule {
	r.ranges = ranges
	return r.add(&expr.Lookup{SourceRegister: firstRegister, Invert: true}).done()
}

// vmap takes the verdict that a map has for what is loaded, if any.
func (r *rule) vmap(s *nft.Set) *rule {
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name, IsDestRegSet: true}).done()
}

// lookup loads what a map has for what is loaded. If it has nothing, the rule ends.
func (r *rule) lookup(s *nft.Set) *rule {
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name, DestRegister: firstRegister, IsDestRegSet: true}).done()
}

// dnatBy sends the connection where a map says for what is loaded.
func (r *rule) dnatBy(s *nft.Set) *rule {
	return r.lookup(s).add(&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(r.t.Table.Family),
		RegAddrMin: firstRegister, RegProtoMin: nft.Register(r.words()), Specified: true,
	})
}

func (r *rule) within(source bool, p netip.Prefix) *rule {
	if p.Bits() == 0 {
		return r
	}
	r.load(source)
	if p.Bits() < p.Addr().BitLen() {
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		r.add(&expr.Bitwise{
			SourceRegister: firstRegister, DestRegister: firstRegister, Len: uint32(len(mask)),
			Mask: mask, Xor: make([]byte, len(mask)),
		})
	}
	return r.is(p.Masked().Addr().AsSlice())
}

// inBy matches what came in on an interface, or on one whose name begins so.
func (r *rule) inBy(name string, isPrefix bool) *rule {
	r.meta(expr.MetaKeyIIFNAME)
	if isPrefix {
		return r.is([]byte(name))
	}
	return r.is(interfaceName(name))
}

// interfaceName returns a name as it is in a register.
func interfaceName(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

// local matches a source or destination that is an address of this node.
func (r *rule) local(source bool) *rule { return r.addressType(source).is(hostWord(unix.RTN_LOCAL)) }

// addressType loads what the routing table says of an address.
func (r *rule) addressType(source bool) *rule {
	return r.add(&expr.Fib{Register: firstRegister, ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source})
}

// conntrack loads what is known of the flow.
func (r *rule) conntrack(k expr.CtKey) *rule { return r.add(&expr.Ct{Key: k, Register: r.take(1)}) }

// newFlow matches the first packet of a flow.
func (r *rule) newFlow() *rule { return r.conntrack(expr.CtKeySTATE).has(expr.CtStateBitNEW) }

// The bits of a flow's status: IPS_CONFIRMED and IPS_DST_NAT.
const statusConfirmed, statusDNAT = 1 << 3, 1 << 5

// translated matches a flow whose destination was translated.
func (r *rule) translated() *rule { return r.conntrack(expr.CtKeySTATUS).has(statusDNAT) }

// lacks matches packets without any of some bits of the mark.
func (r *rule) lacks(bits uint32) *rule {
	return r.meta(expr.MetaKeyMARK).bits(bits, 0).is(hostWord(0))
}

// marked matches packets marked for masquerading.
func (r *rule) marked() *rule { return r.meta(expr.MetaKeyMARK).has(r.t.mark) }

// setMark sets or clears the mark for masquerading and leaves other bits alone.
func (r *rule) setMark(on bool) *rule {
	return r.meta(expr.MetaKeyMARK).bits(^r.t.mark, r.markIf(on)).set(expr.MetaKeyMARK)
}

func (r *rule) markIf(on bool) uint32 {
	if on {
		return r.t.mark
	}
	return 0
}

// priority loads the packet's priority, which is where the first packet of a
// connection carries what one lookup found to the next: a lookup within the key
// of another would make the nft program of Debian 12 abort when it lists.
func (r *rule) priority() *rule { return r.meta(expr.MetaKeyPRIORITY) }

// priorityBy sets the packet's priority to what a map has for what is loaded.
// If it has nothing, the rule ends and the priority stays.
func (r *rule) priorityBy(s *nft.Set) *rule { return r.lookup(s).set(expr.MetaKeyPRIORITY) }

// setPriority keeps some bits of the packet's priority and sets others.
func (r *rule) setPriority(keep, set uint32) *rule {
	return r.priority().bits(keep, set).set(expr.MetaKeyPRIORITY)
}

// priorityIsID matches if the packet's priority is the id of an endpoint, and not
// the number of a list, a class or a slot.
func (r *rule) priorityIsID() *rule {
	return r.priority().bits(firstClass, 0).isNot(hostWord(firstClass)).priorityHas(halfBlock - 1)
}

// priorityIsSlot matches if the packet's priority is the number of a slot.
func (r *rule) priorityIsSlot() *rule { return r.priority().bits(slots, 0).is(hostWord(slots)) }

func (r *rule) priorityHas(bits uint32) *rule { return r.priority().has(bits) }

// clearPriority sets the packet's priority to none.
func (r *rule) clearPriority() *rule {
	return r.add(&expr.Immediate{Register: firstRegister, Data: hostWord(0)}).set(expr.MetaKeyPRIORITY)
}

// remember notes the packet's priority, an endpoint's id, for the client and
// the list that the id is of. If something is noted already, it stays and lasts
// longer.
func (r *rule) remember(s *nft.Set, mask uint32, timeout time.Duration) *rule {
	r.load(true).priority().bits(mask, 0)
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

// toThisHost matches packets in frames to this host alone, or from it.
func (r *rule) toThisHost() *rule {
	return r.meta(expr.MetaKeyPKTTYPE).is([]byte{unix.PACKET_HOST})
}

// reset refuses a TCP connection.
func (r *rule) reset() *rule { return r.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}) }

func (r *rule) jump(chain string) *rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

func (r *rule) goTo(chain string) *rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

func (r *rule) accept() *rule  { return r.add(&expr.Verdict{Kind: expr.VerdictAccept}) }
func (r *rule) drop() *rule    { return r.add(&expr.Verdict{Kind: expr.VerdictDrop}) }
func (r *rule) returns() *rule { return r.add(&expr.Verdict{Kind: expr.VerdictReturn}) }

// comment finishes the rule with a comment that says why it is there.
func (r *rule) comment(why string) *nft.Rule {
	return &nft.Rule{Exprs: r.exprs, Ranges: r.ranges, Comment: why}
}

// hostWord returns a number as it is in a register.
func hostWord(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// word reads a number as hostWord writes it.
func word(s string) (uint32, bool) {
	if len(s) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32([]byte(s)), true
}
