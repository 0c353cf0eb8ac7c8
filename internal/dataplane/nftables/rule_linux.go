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

// rule builds one rule. Its methods append expressions in the order in which the nft
// program prints them. Methods that load a value append it to the values in the registers;
// methods that use the values start again with the first register.
type rule struct {
	t      *table
	exprs  []expr.Any
	ranges nft.Ranges // the elements of the rule's anonymous set, if it has one
	next   uint32     // the next free register, counted in words
}

func (t *table) rule() *rule { return &rule{t: t} }

// firstRegister is the register of the first loaded value.
var firstRegister = nft.Register(0)

func (r *rule) add(x ...expr.Any) *rule { r.exprs = append(r.exprs, x...); return r }

// allocate reserves registers for a number of words and returns the first one's number.
func (r *rule) allocate(words uint32) uint32 {
	n := nft.Register(r.next)
	r.next += words
	return n
}

// resetRegisters makes the next value go into the first register.
func (r *rule) resetRegisters() *rule { r.next = 0; return r }

// addrWords returns the length of an address in words.
func (r *rule) addrWords() uint32 { return uint32(r.t.family.Bits() / 32) }

// saddr and daddr load the packet's source or destination address.
func (r *rule) saddr() *rule { return r.address(true) }
func (r *rule) daddr() *rule { return r.address(false) }

func (r *rule) address(source bool) *rule {
	x := &expr.Payload{DestRegister: r.allocate(r.addrWords()), Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	if r.t.family == proxy.IPv6 {
		x.Offset, x.Len = 24, 16
	}
	if source {
		x.Offset -= x.Len
	}
	return r.add(x)
}

// meta loads a meta key of the packet; setMeta sets one to the first loaded value.
func (r *rule) meta(k expr.MetaKey) *rule {
	return r.add(&expr.Meta{Key: k, Register: r.allocate(1)})
}

func (r *rule) setMeta(k expr.MetaKey) *rule {
	return r.add(&expr.Meta{Key: k, Register: firstRegister, SourceRegister: true}).resetRegisters()
}

// bitwise replaces the last loaded value v by v & keep ^ invert. It must be one word.
func (r *rule) bitwise(keep, invert uint32) *rule {
	at := nft.Register(r.next - 1)
	return r.add(&expr.Bitwise{SourceRegister: at, DestRegister: at, Len: 4, Mask: hostWord(keep), Xor: hostWord(invert)})
}

// eq and neq match if the loaded values equal data, or do not.
func (r *rule) eq(data []byte) *rule  { return r.compare(expr.CmpOpEq, data) }
func (r *rule) neq(data []byte) *rule { return r.compare(expr.CmpOpNeq, data) }

func (r *rule) compare(op expr.CmpOp, data []byte) *rule {
	return r.add(&expr.Cmp{Op: op, Register: firstRegister, Data: data}).resetRegisters()
}

// hasAny matches if the loaded value has at least one of the bits set.
func (r *rule) hasAny(bits uint32) *rule { return r.bitwise(bits, 0).neq(hostWord(0)) }

// protocol and port load the packet's transport protocol and destination port.
func (r *rule) protocol() *rule { return r.meta(expr.MetaKeyL4PROTO) }

// protocolIs matches packets of a transport protocol. With IPv4 it reads the header, which is
// faster than protocol; with IPv6 extension headers may come first.
func (r *rule) protocolIs(protocol byte) *rule {
	if r.t.family == proxy.IPv6 {
		return r.protocol().eq([]byte{protocol})
	}
	return r.add(&expr.Payload{DestRegister: r.allocate(1), Base: expr.PayloadBaseNetworkHeader, Offset: 9, Len: 1}).eq([]byte{protocol})
}

func (r *rule) port() *rule {
	return r.add(&expr.Payload{DestRegister: r.allocate(1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
}

// frontend loads the packet's key in the maps s.
func (r *rule) frontend(s *frontendMaps) *rule {
	if s.byAddress {
		r.daddr()
	}
	return r.protocol().port()
}

// inSet matches if a set contains the loaded values.
func (r *rule) inSet(s *nft.Set) *rule {
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name}).resetRegisters()
}

// notInRanges matches if the loaded address is in none of the ranges, which become an
// anonymous set of the rule. A rule can have only one.
func (r *rule) notInRanges(ranges nft.Ranges) *rule {
	r.ranges = ranges
	return r.add(&expr.Lookup{SourceRegister: firstRegister, Invert: true}).resetRegisters()
}

// vmap applies the verdict that a map has for the loaded values, if any.
func (r *rule) vmap(s *nft.Set) *rule {
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name, IsDestRegSet: true}).resetRegisters()
}

// lookup replaces the loaded values by what a map has for them. If it has nothing, the rule
// does not match.
func (r *rule) lookup(s *nft.Set) *rule {
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Name, DestRegister: firstRegister, IsDestRegSet: true}).resetRegisters()
}

// dnatBy translates the destination to what a map has for the loaded values.
func (r *rule) dnatBy(s *nft.Set) *rule {
	return r.lookup(s).add(&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(r.t.Table.Family),
		RegAddrMin: firstRegister, RegProtoMin: nft.Register(r.addrWords()), Specified: true,
	})
}

// saddrIn and daddrIn match a source or destination address in a prefix. Every
// address is in a prefix of length 0, so nothing is compared for one.
func (r *rule) saddrIn(p netip.Prefix) *rule { return r.addressIn(true, p) }
func (r *rule) daddrIn(p netip.Prefix) *rule { return r.addressIn(false, p) }

func (r *rule) addressIn(source bool, p netip.Prefix) *rule {
	if p.Bits() == 0 {
		return r
	}
	r.address(source)
	if p.Bits() < p.Addr().BitLen() {
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		r.add(&expr.Bitwise{
			SourceRegister: firstRegister, DestRegister: firstRegister, Len: uint32(len(mask)),
			Mask: mask, Xor: make([]byte, len(mask)),
		})
	}
	return r.eq(p.Masked().Addr().AsSlice())
}

// iifname matches packets that came in on the named interface, or on any whose name has that
// prefix.
func (r *rule) iifname(name string, isPrefix bool) *rule {
	r.meta(expr.MetaKeyIIFNAME)
	if isPrefix {
		return r.eq([]byte(name))
	}
	return r.eq(interfaceName(name))
}

// interfaceName returns a name as a register holds it, padded with zeros. The
// configuration ensures that it is not too long.
func interfaceName(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

// saddrIsLocal and daddrIsLocal match packets whose source or destination is an
// address of this node.
func (r *rule) saddrIsLocal() *rule { return r.addressType(true).eq(hostWord(unix.RTN_LOCAL)) }
func (r *rule) daddrIsLocal() *rule { return r.addressType(false).eq(hostWord(unix.RTN_LOCAL)) }

// addressType loads the type that the routing table has for an address.
func (r *rule) addressType(source bool) *rule {
	return r.add(&expr.Fib{Register: firstRegister, ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source})
}

// conntrack loads a key of connection tracking.
func (r *rule) conntrack(k expr.CtKey) *rule { return r.add(&expr.Ct{Key: k, Register: r.allocate(1)}) }

// newFlow matches the first packet of a flow.
func (r *rule) newFlow() *rule { return r.conntrack(expr.CtKeySTATE).hasAny(expr.CtStateBitNEW) }

// Bits of a flow's status: IPS_CONFIRMED and IPS_DST_NAT.
const statusConfirmed, statusDNAT = 1 << 3, 1 << 5

// translated matches a flow whose destination was translated.
func (r *rule) translated() *rule { return r.conntrack(expr.CtKeySTATUS).hasAny(statusDNAT) }

// markLacks matches packets whose mark has none of the bits set.
func (r *rule) markLacks(bits uint32) *rule {
	return r.meta(expr.MetaKeyMARK).bitwise(bits, 0).eq(hostWord(0))
}

// marked matches packets with the mark for masquerading.
func (r *rule) marked() *rule { return r.meta(expr.MetaKeyMARK).hasAny(r.t.mark) }

// setMark sets or clears the mark for masquerading and leaves other bits alone.
func (r *rule) setMark(on bool) *rule {
	return r.meta(expr.MetaKeyMARK).bitwise(^r.t.mark, r.markIf(on)).setMeta(expr.MetaKeyMARK)
}

func (r *rule) markIf(on bool) uint32 {
	if on {
		return r.t.mark
	}
	return 0
}

// priority loads the packet's priority, in which the first packet of a connection
// carries the result of one lookup to the next: if a lookup were part of the key of
// another one, the nft program of Debian 12 would abort when it lists the rule.
func (r *rule) priority() *rule { return r.meta(expr.MetaKeyPRIORITY) }

// setPriorityFrom sets the packet's priority to what a map has for the loaded values. If
// it has nothing, the rule does not match and the priority stays.
func (r *rule) setPriorityFrom(s *nft.Set) *rule { return r.lookup(s).setMeta(expr.MetaKeyPRIORITY) }

// setPriority replaces the packet's priority p by p & keep ^ invert.
func (r *rule) setPriority(keep, invert uint32) *rule {
	return r.priority().bitwise(keep, invert).setMeta(expr.MetaKeyPRIORITY)
}

// priorityIsID matches if the packet's priority is the id of an endpoint: not the number
// of a list, a class or a slot.
func (r *rule) priorityIsID() *rule {
	return r.priority().bitwise(firstClass, 0).neq(hostWord(firstClass)).priorityHas(halfBlock - 1)
}

// priorityIsSlot matches if the packet's priority is the number of a slot.
func (r *rule) priorityIsSlot() *rule { return r.priority().bitwise(slots, 0).eq(hostWord(slots)) }

func (r *rule) priorityHas(bits uint32) *rule { return r.priority().hasAny(bits) }

// clearPriority sets the packet's priority to 0.
func (r *rule) clearPriority() *rule {
	return r.add(&expr.Immediate{Register: firstRegister, Data: hostWord(0)}).setMeta(expr.MetaKeyPRIORITY)
}

// remember stores the packet's priority, an endpoint's id, in s under the client and the
// id's list, which mask extracts. If there is an entry already, its value stays and its
// timeout is extended.
func (r *rule) remember(s *nft.Set, mask uint32, timeout time.Duration) *rule {
	r.saddr().priority().bitwise(mask, 0)
	id := nft.Register(r.next)
	return r.priority().add(&expr.Dynset{
		SrcRegKey: firstRegister, SrcRegData: id, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout,
	}).resetRegisters()
}

// forget deletes the entry of s for the client and the list in the packet's priority. The
// kernel requires a value even for a deletion.
func (r *rule) forget(s *nft.Set) *rule {
	r.saddr().priority()
	none := r.allocate(1)
	return r.add(&expr.Immediate{Register: none, Data: hostWord(0)}, &expr.Dynset{
		SrcRegKey: firstRegister, SrcRegData: none, SetName: s.Name, Operation: dynsetDelete,
	}).resetRegisters()
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

// toThisHost matches packets whose frame was addressed to this host alone, and packets that
// this host sends.
func (r *rule) toThisHost() *rule {
	return r.meta(expr.MetaKeyPKTTYPE).eq([]byte{unix.PACKET_HOST})
}

// rejectWithReset answers with a TCP reset.
func (r *rule) rejectWithReset() *rule { return r.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}) }

func (r *rule) jump(chain string) *rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

func (r *rule) goTo(chain string) *rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

func (r *rule) accept() *rule  { return r.add(&expr.Verdict{Kind: expr.VerdictAccept}) }
func (r *rule) drop() *rule    { return r.add(&expr.Verdict{Kind: expr.VerdictDrop}) }
func (r *rule) returns() *rule { return r.add(&expr.Verdict{Kind: expr.VerdictReturn}) }

// comment completes the rule with a comment, which the nft program prints.
func (r *rule) comment(why string) *nft.Rule {
	return &nft.Rule{Exprs: r.exprs, Ranges: r.ranges, Comment: why}
}

// hostWord returns a number as a register holds it, in host byte order.
func hostWord(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// parseHostWord is the inverse of hostWord; it reports false if s is not one word.
func parseHostWord(s string) (uint32, bool) {
	if len(s) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32([]byte(s)), true
}
