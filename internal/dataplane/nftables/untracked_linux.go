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

// Untracked says which TCP and UDP connections the kernel does not track: those between
// addresses of pods that are not translated. Replies to a flow that the rules translate go
// from pod to pod, too, and must be translated back, so translated flows get a source port
// from a reserved range, by which their packets are recognized.
type Untracked struct {
	Within []netip.Prefix // the pods' addresses; if there are none, everything is tracked
	Except []netip.Addr   // the node's addresses among them; flows that another program masquerades may use these
	Begun  bool           // whether to stop tracking: all translated flows have a reserved port
}

// FirstTrackedPort is the first of the source ports, up to 65535, that are reserved for
// translated flows. A client gets one only if it asks for it; then its flow is tracked. The
// ports share a bit prefix that no other port has, which the kernel compares faster
// than a range.
const FirstTrackedPort = 0xf000

const (
	untrackedPrerouting = "untracked-prerouting"
	priorityRaw         = -300 // before connection tracking, after defragmentation

	// fewAddresses is the number up to which addresses are compared one by one. Beyond it
	// the routing table is queried, which takes longer.
	fewAddresses = 8
)

// mayBeUntracked are the protocols that may stay untracked. SCTP is always tracked,
// because only the rules translate it.
var mayBeUntracked = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}

// currentUntracked returns the overlay's Untracked, restricted to the table's family.
func (t *table) currentUntracked() (u Untracked) {
	if t.overlay.Untracked != nil {
		u = t.overlay.Untracked()
	}
	u.Within = proxy.PrefixesOf(u.Within, t.family)
	u.Except = slices.DeleteFunc(slices.Clone(u.Except), func(a netip.Addr) bool { return proxy.FamilyOf(a) != t.family })
	return u
}

// betweenPods returns a rule for each protocol and each pair of prefixes of pods; then
// completes the rule.
func (t *table) betweenPods(u Untracked, then func(*rule) *nft.Rule) (out []*nft.Rule) {
	for _, protocol := range mayBeUntracked {
		for _, src := range u.Within {
			for _, dst := range u.Within {
				out = append(out, then(t.rule().protocolIs(protocol).saddrIn(src).daddrIn(dst)))
			}
		}
	}
	return out
}

// untrackedBaseChains returns the base chain that keeps the kernel from tracking connections
// between pods. It sees packets before any translation, so packets to a Service do not match.
// Every packet passes it, so its rules use expressions that the kernel evaluates in place
// where there are any, and no verdict.
func (t *table) untrackedBaseChains(u Untracked) []*chain {
	if !u.Begun || len(u.Within) == 0 {
		return nil
	}
	rules := t.betweenPods(u, func(r *rule) *nft.Rule {
		if len(u.Except) > fewAddresses {
			r.addressType(false).neq(hostWord(unix.RTN_LOCAL))
		} else {
			for _, a := range u.Except {
				r.daddr().neq(a.AsSlice())
			}
		}
		return r.portIsUntracked(0).portIsUntracked(2).add(&expr.Notrack{}).comment("between pods, and not translated")
	})
	return []*chain{t.baseChain(untrackedPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityRaw, rules...)}
}

// portIsUntracked matches if the source port, at offset 0, or the destination port, at
// offset 2, is not reserved for translated flows. Both ports are loaded, because the kernel
// masks whole words much faster.
func (r *rule) portIsUntracked(offset uint32) *rule {
	first := make([]byte, 4)
	binary.BigEndian.PutUint16(first[offset:], FirstTrackedPort)
	return r.add(
		&expr.Payload{DestRegister: r.allocate(1), Base: expr.PayloadBaseTransportHeader, Len: 4},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: first, Xor: make([]byte, 4)},
	).neq(first)
}

// translatedPorts returns the rules that give translated flows between pods a reserved source
// port, by which their replies are recognized. It does not matter who translated them.
func (t *table) translatedPorts() []*nft.Rule {
	return t.betweenPods(t.currentUntracked(), func(r *rule) *nft.Rule {
		first, last := nft.Register(0), nft.Register(1)
		return r.translated().add(
			&expr.Immediate{Register: first, Data: binary.BigEndian.AppendUint16(nil, FirstTrackedPort)},
			&expr.Immediate{Register: last, Data: binary.BigEndian.AppendUint16(nil, math.MaxUint16)},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(t.Table.Family), RegProtoMin: first, RegProtoMax: last, FullyRandom: true, Specified: true},
		).comment("replies must be tracked")
	})
}

// Untracks reports whether the rules in force already leave exactly the wanted connections
// untracked. If so, all translated flows have a reserved port.
func (d *Dataplane) Untracks(ctx context.Context) (bool, error) {
	for _, t := range d.tables {
		listing, err := listIfAny(ctx, d.conn, t.Table)
		if err != nil || listing == nil {
			return false, err
		}
		u := t.currentUntracked()
		u.Begun = true
		for _, c := range t.untrackedBaseChains(u) {
			if !slices.Equal(listing.Chains[c.Name], c.listed()) {
				return false, nil
			}
		}
	}
	return true, nil
}
