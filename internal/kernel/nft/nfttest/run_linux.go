package nfttest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netfilter"
	"sluice/internal/kernel/nft"
)

// Run evaluates the base chains at a hook for a packet, in all tables of its family, as the
// kernel does. It panics at an expression that it does not know.
func (f *Fake) Run(h netfilter.Hook, nat bool, p *netfilter.Packet, choose netfilter.Choose) netfilter.Verdict {
	return f.RunPriorities(math.MinInt32, math.MaxInt32, h, nat, p, choose)
}

// RunPriorities is like Run, for the base chains whose priority is in a range.
func (f *Fake) RunPriorities(from, to int32, h netfilter.Hook, nat bool, p *netfilter.Packet, choose netfilter.Choose) netfilter.Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	family := nft.IP
	if p.Dst.Addr().Is6() {
		family = nft.IP6
	}
	type base struct {
		evaluation
		chain *fakeChain
	}
	var chains []base
	for name, t := range f.tables {
		for _, c := range t.chains {
			if name.Family == family && c.hook != nil && c.hook.Number == uint32(h) && from <= c.hook.Priority && c.hook.Priority <= to {
				chains = append(chains, base{evaluation{t, family, p, choose, [80]byte{}}, c})
			}
		}
	}
	slices.SortFunc(chains, func(a, b base) int { return cmp.Compare(a.chain.hook.Priority, b.chain.hook.Priority) })
	for _, c := range chains {
		if c.chain.hook.Type == "nat" && (!nat || h != netfilter.Postrouting && p.DNAT) {
			continue
		}
		switch v := c.chainVerdict(c.chain); v {
		case verdictDrop:
			return netfilter.Drop
		case verdictReject:
			return netfilter.Reject
		}
	}
	return netfilter.Accept
}

// What an expression does: the next one follows, the next rule follows, or the kernel leaves
// the chain (return) or all chains.
type verdict uint8

const (
	verdictContinue verdict = iota
	verdictBreak
	verdictReturn
	verdictAccept
	verdictDrop
	verdictReject
)

// evaluation is the evaluation of one base chain.
type evaluation struct {
	table  *fakeTable
	family nft.Family
	p      *netfilter.Packet
	choose netfilter.Choose
	words  [80]byte // the registers
}

// chainVerdict evaluates a chain; verdictReturn also stands for its end.
func (e *evaluation) chainVerdict(c *fakeChain) verdict {
	for _, r := range c.rules {
		e.words = [80]byte{}
		v := verdictContinue
		for _, x := range r.Exprs {
			if v = e.run(r, x); v != verdictContinue {
				break
			}
		}
		if v != verdictContinue && v != verdictBreak {
			return v
		}
	}
	return verdictReturn
}

// register returns the bytes from a register on.
func (e *evaluation) register(n uint32) []byte {
	if n < unix.NFT_REG32_00 {
		return e.words[(n-unix.NFT_REG_1)*16:]
	}
	return e.words[(n-unix.NFT_REG32_00)*4:]
}

// store fills a register and pads the last word with zeros.
func (e *evaluation) store(n uint32, data []byte) verdict {
	at := e.register(n)
	clear(at[:(len(data)+3)&^3])
	copy(at, data)
	return verdictContinue
}

func (e *evaluation) number(n uint32) uint32 { return binary.NativeEndian.Uint32(e.register(n)) }

func hostWord(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func matches(ok bool) verdict {
	if ok {
		return verdictContinue
	}
	return verdictBreak
}

// run evaluates one expression of a rule.
func (e *evaluation) run(r *nft.Rule, x expr.Any) verdict {
	switch x := x.(type) {
	case *expr.Verdict:
		return e.verdict(x.Kind, x.Chain)
	case *expr.Payload:
		return e.payload(x)
	case *expr.Meta:
		return e.meta(x)
	case *expr.Ct:
		return e.conntrack(x)
	case *expr.Bitwise:
		data := bytes.Clone(e.register(x.SourceRegister)[:x.Len])
		for i := range data {
			data[i] = data[i]&x.Mask[i] ^ x.Xor[i]
		}
		return e.store(x.DestRegister, data)
	case *expr.Cmp:
		return matches(bytes.Equal(e.register(x.Register)[:len(x.Data)], x.Data) == (x.Op == expr.CmpOpEq))
	case *expr.Immediate:
		return e.store(x.Register, x.Data)
	case *expr.Fib:
		return e.addressType(x)
	case *expr.Lookup:
		return e.lookup(r, x)
	case *expr.Dynset:
		return e.dynset(x)
	case *expr.Numgen:
		return e.store(x.Register, hostWord(e.choose(x.Modulus)+x.Offset))
	case *expr.Hash:
		return e.store(x.DestRegister, hostWord(e.choose(x.Modulus)+x.Offset))
	case *expr.Socket:
		return verdictBreak // a first packet belongs to no socket
	case *expr.TProxy:
		at, _ := netip.AddrFromSlice(e.register(x.RegAddr)[:e.addrLen()])
		e.p.Socket = netip.AddrPortFrom(at, binary.BigEndian.Uint16(e.register(x.RegPort)))
		return verdictContinue
	case *expr.NAT:
		return e.nat(x)
	case *expr.Masq:
		e.p.Masqueraded = true
		return verdictAccept
	case *expr.Reject:
		return verdictReject
	case *expr.Counter, *expr.Notrack:
		return verdictContinue
	default:
		panic(fmt.Sprintf("nfttest cannot evaluate %T", x))
	}
}

func (e *evaluation) addrLen() int {
	if e.family == nft.IP6 {
		return nft.IPv6Addr.Len()
	}
	return nft.IPv4Addr.Len()
}

// verdict follows a verdict of a rule or of a map.
func (e *evaluation) verdict(kind expr.VerdictKind, chain string) verdict {
	switch kind {
	case expr.VerdictAccept:
		return verdictAccept
	case expr.VerdictDrop:
		return verdictDrop
	case expr.VerdictReturn:
		return verdictReturn
	case expr.VerdictGoto:
		return e.chainVerdict(e.table.chains[chain])
	case expr.VerdictJump:
		if v := e.chainVerdict(e.table.chains[chain]); v != verdictReturn {
			return v
		}
		return verdictContinue
	default:
		panic(fmt.Sprintf("nfttest cannot evaluate verdict %d", kind))
	}
}

func (e *evaluation) payload(x *expr.Payload) verdict {
	header := e.transportHeader()
	if x.Base == expr.PayloadBaseNetworkHeader {
		header = e.networkHeader()
	}
	if int(x.Offset+x.Len) > len(header) {
		return verdictBreak
	}
	return e.store(x.DestRegister, header[x.Offset:x.Offset+x.Len])
}

func (e *evaluation) networkHeader() []byte {
	src, dst := e.p.Src.AsSlice(), e.p.Dst.Addr().AsSlice()
	if e.family == nft.IP6 {
		return append(append([]byte{0x60, 0, 0, 0, 0, 0, e.p.Protocol, 64}, src...), dst...)
	}
	return append(append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, e.p.Protocol, 0, 0}, src...), dst...)
}

// transportHeader returns the header of a packet that opens a connection.
func (e *evaluation) transportHeader() []byte {
	const clientPort, syn = 40000, 0x02
	h := make([]byte, 8, 20)
	binary.BigEndian.PutUint16(h, clientPort)
	binary.BigEndian.PutUint16(h[2:], e.p.Dst.Port())
	if e.p.Protocol == unix.IPPROTO_TCP {
		h = h[:20]
		h[13] = syn
	}
	return h
}

func (e *evaluation) meta(x *expr.Meta) verdict {
	if x.SourceRegister {
		switch v := e.number(x.Register); x.Key {
		case expr.MetaKeyMARK:
			e.p.Mark = v
		case expr.MetaKeyPRIORITY:
			e.p.Priority = v
		default:
			panic(fmt.Sprintf("nfttest cannot set meta key %d", x.Key))
		}
		return verdictContinue
	}
	switch x.Key {
	case expr.MetaKeyL4PROTO:
		return e.store(x.Register, []byte{e.p.Protocol})
	case expr.MetaKeyMARK:
		return e.store(x.Register, hostWord(e.p.Mark))
	case expr.MetaKeyPRIORITY:
		return e.store(x.Register, hostWord(e.p.Priority))
	case expr.MetaKeyPKTTYPE:
		return e.store(x.Register, []byte{unix.PACKET_HOST})
	case expr.MetaKeyIIFNAME:
		return e.store(x.Register, append([]byte(e.p.In), make([]byte, unix.IFNAMSIZ-len(e.p.In))...))
	default:
		panic(fmt.Sprintf("nfttest cannot load meta key %d", x.Key))
	}
}

// conntrack answers for a connection that begins.
func (e *evaluation) conntrack(x *expr.Ct) verdict {
	const statusDNAT = 1 << 5
	switch {
	case x.SourceRegister && x.Key == expr.CtKeyMARK:
		e.p.FlowMark = e.number(x.Register)
		return verdictContinue
	case x.Key == expr.CtKeySTATE:
		return e.store(x.Register, hostWord(expr.CtStateBitNEW))
	case x.Key == expr.CtKeyMARK:
		return e.store(x.Register, hostWord(e.p.FlowMark))
	case x.Key == expr.CtKeyDIRECTION:
		return e.store(x.Register, []byte{0})
	case x.Key == expr.CtKeySTATUS && e.p.Translated():
		return e.store(x.Register, hostWord(statusDNAT))
	case x.Key == expr.CtKeySTATUS:
		return e.store(x.Register, hostWord(0))
	default:
		panic(fmt.Sprintf("nfttest cannot load conntrack key %d", x.Key))
	}
}

func (e *evaluation) addressType(x *expr.Fib) verdict {
	a := e.p.Dst.Addr()
	if x.FlagSADDR {
		a = e.p.Src
	}
	kind := uint32(unix.RTN_UNICAST)
	if e.p.Node.IsLocal(a) {
		kind = unix.RTN_LOCAL
	}
	return e.store(x.Register, hostWord(kind))
}

// lookup evaluates a lookup in a set, a map or the rule's anonymous set.
func (e *evaluation) lookup(r *nft.Rule, x *expr.Lookup) verdict {
	if x.SetName == "" {
		key, found := string(e.register(x.SourceRegister)[:e.addrLen()]), false
		for first, last := range r.Ranges.All(e.family) {
			found = found || first <= key && key <= last
		}
		return matches(found != x.Invert)
	}
	s := e.table.sets[x.SetName]
	key := string(e.register(x.SourceRegister)[:s.set.KeyLen()])
	element, found := s.elements[key]
	if data, ok := e.p.Remembered[[2]string{x.SetName, key}]; ok && !found {
		element, found = nft.Element{Key: key, Data: data}, true
	}
	switch {
	case found == x.Invert:
		return verdictBreak
	case !x.IsDestRegSet:
		return verdictContinue
	case s.set.Verdicts:
		return e.elementVerdict(element.Verdict)
	default:
		return e.store(x.DestRegister, []byte(element.Data))
	}
}

func (e *evaluation) elementVerdict(v nft.Verdict) verdict {
	switch v.Code {
	case nft.Accept:
		return verdictAccept
	case nft.Drop:
		return verdictDrop
	default:
		return e.verdict(expr.VerdictGoto, v.Chain)
	}
}

// dynset keeps with the packet what a rule stores, so that evaluating changes nothing.
func (e *evaluation) dynset(x *expr.Dynset) verdict {
	s := e.table.sets[x.SetName]
	at := [2]string{x.SetName, string(e.register(x.SrcRegKey)[:s.set.KeyLen()])}
	if x.Operation != unix.NFT_DYNSET_OP_ADD && x.Operation != unix.NFT_DYNSET_OP_UPDATE {
		delete(e.p.Remembered, at)
		return verdictContinue
	}
	if _, ok := e.p.Remembered[at]; !ok && s.set.DataLen() > 0 {
		e.p.Remembered[at] = string(e.register(x.SrcRegData)[:s.set.DataLen()])
	}
	return verdictContinue
}

// nat translates the destination. A translation of source ports changes nothing that a test sees.
func (e *evaluation) nat(x *expr.NAT) verdict {
	if x.Type != expr.NATTypeDestNAT {
		return verdictAccept
	}
	to, port := e.p.Dst.Addr(), e.p.Dst.Port()
	if x.RegAddrMin != 0 {
		to, _ = netip.AddrFromSlice(e.register(x.RegAddrMin)[:e.addrLen()])
	}
	if x.RegProtoMin != 0 {
		port = binary.BigEndian.Uint16(e.register(x.RegProtoMin))
	}
	e.p.Dst, e.p.DNAT = netip.AddrPortFrom(to, port), true
	return verdictAccept
}
