package nftables

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"

	"sluice/internal/kernel/nft"
)

const (
	// clientsPrefix is the prefix of chains that admit only the clients in source ranges.
	clientsPrefix = "clients-"

	// fewRanges is the number up to which each range has a rule instead of an element of
	// an anonymous set: when a set is added, the kernel visits all others.
	fewRanges = 8
)

// clientsChain returns a chain that refuses all clients except those in the ranges from,
// which are sorted. Its name is a cryptographic hash of the ranges: frontends with the same ranges
// share the chain, nobody can forge a collision, and a frontend whose ranges change
// switches to another chain atomically. Many ranges are in an anonymous set, which the
// kernel deletes with its rule. A set of all frontends and their ranges would need no
// chains, but the kernel searches such a set from the start for each element that is removed.
func (t *table) clientsChain(from []netip.Prefix) *chain {
	var list []byte
	for _, p := range from {
		list = append(p.AppendTo(list), ' ')
	}
	sum := sha256.Sum256(list)
	c := t.chain(clientsPrefix + hex.EncodeToString(sum[:16]))
	c.rank = rankClass
	if len(from) > fewRanges {
		c.rules = []*nft.Rule{t.rule().saddr().notInRanges(nft.RangesOf(from)).goTo(refusedSource).comment("not an allowed client")}
		return c
	}
	for _, p := range from {
		c.rules = append(c.rules, t.rule().saddrIn(p).returns().comment("an allowed client"))
	}
	c.rules = append(c.rules, t.rule().goTo(refusedSource).comment("not an allowed client"))
	return c
}
