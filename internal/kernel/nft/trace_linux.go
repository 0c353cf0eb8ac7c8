package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// TraceTable is the name of the table that marks packets to be traced. It exists while
// [Conn.Trace] runs.
const TraceTable = "sluice-trace"

// Traced says which packets are traced.
type Traced struct {
	Protocol uint8          // as in the IP header; for TCP only packets that open a connection are traced
	Src      netip.Addr     // the zero Addr means any
	Dst      netip.AddrPort // before any translation
}

// TraceStep is a rule that decided about a packet, or the end of a chain.
type TraceStep struct {
	Packet  uint32 // identifies the packet
	Family  Family // of the table; 1 is inet
	Table   string
	Chain   string
	Handle  uint64 // of the rule; 0 for the end of the chain
	Verdict string // as nft prints it
	Drops   bool

	// Dst is where the packet goes at the first step in a base chain, so that a later step
	// shows what rules made of it; the zero AddrPort at other steps.
	Dst netip.AddrPort
}

// errTraceLost ends a trace of which steps were lost.
var errTraceLost = errors.New("more such packets came than can be followed: try again when there are fewer")

// Trace marks packets, calls begun, and then calls each with every step of these packets
// through the rules of all tables, until ctx ends. It then removes the table that marks
// packets; since Linux 5.12 the kernel also removes it if the process is killed. Steps that
// packets took before begun is called are not reported.
func (c *Conn) Trace(ctx context.Context, what Traced, begun func(), each func(TraceStep)) (err error) {
	t := Table{IP, TraceTable}
	if what.Dst.Addr().Is6() {
		t.Family = IP6
	}
	if err := c.markTraced(ctx, t, what); err != nil {
		return fmt.Errorf("mark packets to be traced: %w", err)
	}
	defer func() {
		var b Batch
		b.DeleteTable(t)
		if failed := c.Commit(context.WithoutCancel(ctx), &b); failed != nil {
			err = errors.Join(err, fmt.Errorf("remove %v: %w", t, failed))
		}
	}()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	err = c.events.Listen(ctx, unix.NFNLGRP_NFTRACE, begun, func(datagram []byte) {
		if datagram == nil {
			fail(errTraceLost)
			return
		}
		for m := range netlink.Messages(datagram) {
			if m.Kind == subsystem|unix.NFT_MSG_TRACE && len(m.Body) >= 4 {
				each(decodeTrace(Family(m.Body[0]), m.Attrs()))
			}
		}
	})
	if err == nil && context.Cause(ctx) == errTraceLost {
		err = errTraceLost
	}
	return err
}

// markTraced adds the table that marks packets, in base chains that run before all others.
// Before Linux 5.12, which introduced owned tables, the table outlives a killed process.
func (c *Conn) markTraced(ctx context.Context, t Table, what Traced) error {
	write := func(owned bool) error {
		var b Batch
		b.add(Op{Kind: AddTable, Table: t, Owned: owned})
		for name, hook := range map[string]uint32{"prerouting": unix.NF_INET_PRE_ROUTING, "output": unix.NF_INET_LOCAL_OUT} {
			b.AddChain(t, &Chain{Name: name, Hook: &Hook{Type: "filter", Number: hook, Priority: -1000}})
			b.AddRule(t, name, what.rule(t.Family))
		}
		return c.Commit(ctx, &b)
	}
	err := write(true)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = write(false)
	}
	return err
}

// rule returns the rule that marks the packets.
func (w Traced) rule(f Family) *Rule {
	const word = 0
	srcOffset, dstOffset, length := uint32(12), uint32(16), uint32(4)
	if f == IP6 {
		srcOffset, dstOffset, length = 8, 24, 16
	}
	r := &Rule{Comment: "sluice explain --trace"}
	match := func(load expr.Any, data []byte) {
		r.Exprs = append(r.Exprs, load, &expr.Cmp{Op: expr.CmpOpEq, Register: Register(word), Data: data})
	}
	match(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Register(word)}, []byte{w.Protocol})
	if w.Src.IsValid() {
		match(&expr.Payload{DestRegister: Register(word), Base: expr.PayloadBaseNetworkHeader, Offset: srcOffset, Len: length}, w.Src.AsSlice())
	}
	match(&expr.Payload{DestRegister: Register(word), Base: expr.PayloadBaseNetworkHeader, Offset: dstOffset, Len: length}, w.Dst.Addr().AsSlice())
	port := w.Dst.Port()
	match(&expr.Payload{DestRegister: Register(word), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, []byte{byte(port >> 8), byte(port)})
	if w.Protocol == unix.IPPROTO_TCP {
		const synAndACK, syn = 0x12, 0x02
		r.Exprs = append(r.Exprs, &expr.Payload{DestRegister: Register(word), Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1})
		match(&expr.Bitwise{SourceRegister: Register(word), DestRegister: Register(word), Len: 1, Mask: []byte{synAndACK}, Xor: []byte{0}}, []byte{syn})
	}
	r.Exprs = append(r.Exprs, &expr.Immediate{Register: Register(word), Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, Register: Register(word), SourceRegister: true})
	return r
}

// traceVerdicts has the names of the kernel's verdicts.
var traceVerdicts = map[int32]string{
	0: "drop", 1: "accept", 2: "stolen", 3: "queue", 4: "repeat",
	unix.NFT_CONTINUE: "continue", unix.NFT_BREAK: "continue", unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto", unix.NFT_RETURN: "return",
}

func decodeTrace(f Family, a netlink.Attrs) TraceStep {
	s := TraceStep{
		Family: f, Packet: uint32(a.Number(unix.NFTA_TRACE_ID)), Table: a.Text(unix.NFTA_TRACE_TABLE),
		Chain: a.Text(unix.NFTA_TRACE_CHAIN), Handle: a.Number(unix.NFTA_TRACE_RULE_HANDLE),
	}
	code, to := int32(unix.NFT_CONTINUE), ""
	if p := a.Get(unix.NFTA_TRACE_POLICY); p != nil {
		code = int32(p.Number())
	}
	if v := a.Get(unix.NFTA_TRACE_VERDICT); v != nil {
		code, to = int32(v.Number(unix.NFTA_VERDICT_CODE)), v.Text(unix.NFTA_VERDICT_CHAIN)
	}
	if code > 0 {
		code &= 0xff // the upper bits are an error number or the number of a queue
	}
	s.Verdict, s.Drops = strings.TrimSpace(traceVerdicts[code]+" "+to), code == 0
	s.Dst = destination(a.Get(unix.NFTA_TRACE_NETWORK_HEADER), a.Get(unix.NFTA_TRACE_TRANSPORT_HEADER))
	return s
}

// destination returns the destination in the headers of a packet, which may be incomplete.
func destination(network, transport []byte) netip.AddrPort {
	if len(network) == 0 || len(transport) < 4 {
		return netip.AddrPort{}
	}
	from, length := 16, 4
	if network[0]>>4 == 6 {
		from, length = 24, 16
	}
	if len(network) < from+length {
		return netip.AddrPort{}
	}
	addr, _ := netip.AddrFromSlice(network[from : from+length]) // the length is right
	return netip.AddrPortFrom(addr, uint16(transport[2])<<8|uint16(transport[3]))
}
