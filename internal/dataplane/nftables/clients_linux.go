package nftables

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"

	"sluice/internal/kernel/nft"
)

const (
	// toClients is what names of chains begin with that let some clients go on.
	toClients = "clients-"

	// fewRanges are compared one by one: for a set that is made, the kernel looks at
	// all others.
	fewRanges = 8
)

// clientsChain refuses all clients but those of some ranges, which are sorted. Its name
// says which, in a way that nobody can forge: frontends with the same ranges share it,
// and other ranges are another chain, to which a frontend is led in one go. The set of
// many ranges goes with its rule, whatever is in it. One set of all frontends and their
// ranges would do without chains, but the kernel looks through it from the beginning
// for each element that is removed.
func (t *table) clientsChain(from []netip.Prefix) *chain {
	var list []byte
	for _, p := range from {
		list = append(p.AppendTo(list), ' ')
	}
	sum := sha256.Sum256(list)
	c := t.chain(toClients + hex.EncodeToString(sum[:16]))
	c.rank = rankClass
	if len(from) > fewRanges {
		c.rules = []*nft.Rule{t.rule().load(true).notIn(nft.RangesOf(from)).goTo(refusedSource).comment("not an allowed client")}
		return c
	}
	for _, p := range from {
		c.rules = append(c.rules, t.rule().within(true, p).returns().comment("an allowed client"))
	}
	c.rules = append(c.rules, t.rule().goTo(refusedSource).comment("not an allowed client"))
	return c
}
