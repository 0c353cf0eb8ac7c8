package nftables

import (
	"context"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Untracked says which TCP and UDP connections the kernel does not track: those
// between addresses of pods that nothing has translated. Answers to a flow that the
// rules translate go from pod to pod, too, and must be translated back, so such flows
// get a source port by which they are known.
type Untracked struct {
	Within []netip.Prefix // the pods' addresses; none: everything is tracked
	Except []netip.Addr   // of them, the node's own: others' masquerading may be behind them
	Begun  bool           // no older flow is left that has another port, so it can begin
}

// FirstTrackedPort and those after it are the source ports of flows that are
// translated. They are no client's unless it asks for one, and then its flow is tracked.
// All have the same first bits and no other has them, which the kernel compares faster.
const FirstTrackedPort = 0xf000

const (
	untrackedPrerouting = "untracked-prerouting"
	priorityRaw         = -300 // before connection tracking, after defragmentation

	// fewAddresses are compared one by one; for more, the routing table is asked, which
	// takes longer.
	fewAddresses = 8
)

// mayBeUntracked are the protocols with ports that are not only translated by rules.
var mayBeUntracked = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}

// untracked returns what is so now.
func (t *table) untracked() (u Untracked) {
	if t.over.Untracked != nil {
		u = t.over.Untracked()
	}
	u.Within = proxy.PrefixesOf(u.Within, t.family)
	u.Except = slices.DeleteFunc(slices.Clone(u.Except), func(a netip.Addr) bool { return proxy.FamilyOf(a) != t.family })
	return u
}

// betweenPods returns a rule for each protocol and each two ranges of pods.
func (t *table) betweenPods(u Untracked, then func(*rule) *nft.Rule) (out []*nft.Rule) {
	for _, protocol := range mayBeUntracked {
		for _, src := range u.Within {
			for _, dst := range u.Within {
				out = append(out, then(t.rule().protocol().is([]byte{protocol}).within(true, src).within(false, dst)))
			}
		}
	}
	return out
}

// untrackedHook has the kernel not track what nothing translates. It sees packets as
// they come in, so one to a Service is none between pods.
func (t *table) untrackedHook(u Untracked) []*chain {
	if !u.Begun || len(u.Within) == 0 {
		return nil
	}
	rules := t.betweenPods(u, func(r *rule) *nft.Rule {
		if len(u.Except) > fewAddresses {
			r.addressType(false).isNot(hostWord(unix.RTN_LOCAL))
		} else {
			for _, a := range u.Except {
				r.load(false).isNot(a.AsSlice())
			}
		}
		return r.otherPort(0).otherPort(2).add(&expr.Notrack{}).accept().comment("between pods, and not translated")
	})
	return []*chain{t.base(untrackedPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityRaw, rules...)}
}

// otherPort matches the source port, at offset 0, or the destination port, at 2, if no
// translated flow has it.
func (r *rule) otherPort(offset uint32) *rule {
	first := binary.BigEndian.AppendUint16(nil, FirstTrackedPort)
	return r.add(
		&expr.Payload{DestRegister: r.take(1), Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		// The kernel would be faster with the whole register, but the nft program of Debian 12 aborts when it lists that.
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 2, Mask: first, Xor: []byte{0, 0}},
	).isNot(first)
}

// translatedPorts gives translated flows between pods the ports by which their answers
// are known. Who translated them does not matter.
func (t *table) translatedPorts() []*nft.Rule {
	return t.betweenPods(t.untracked(), func(r *rule) *nft.Rule {
		first, last := nft.Register(0), nft.Register(1)
		return r.translated().add(
			&expr.Immediate{Register: first, Data: binary.BigEndian.AppendUint16(nil, FirstTrackedPort)},
			&expr.Immediate{Register: last, Data: binary.BigEndian.AppendUint16(nil, math.MaxUint16)},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(t.Table.Family), RegProtoMin: first, RegProtoMax: last, FullyRandom: true, Specified: true},
		).comment("answers to it must be tracked")
	})
}

// Untracks reports whether the rules that are in force leave just those connections
// untracked that these would, so that no older flow is left.
func (d *Dataplane) Untracks(ctx context.Context) (bool, error) {
	for _, t := range d.tables {
		listing, err := listIfAny(ctx, d.conn, t.Table)
		if err != nil || listing == nil {
			return false, err
		}
		u := t.untracked()
		u.Begun = true
		for _, c := range t.untrackedHook(u) {
			if !slices.Equal(listing.Chains[c.Name], c.listed()) {
				return false, nil
			}
		}
	}
	return true, nil
}
