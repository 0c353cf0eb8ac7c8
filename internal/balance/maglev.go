package balance

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// maglevSize is how many places a Maglev table has: a prime, and a hundred
// times as many as most Services have endpoints.
const maglevSize = 16381

func hash(b []byte) uint64 {
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// maglevTable has an endpoint for each hash of a client, and is the same on
// every node. The endpoints take turns in claiming the next place of their own
// order that is free, so most places stay as they are when one comes or goes.
type maglevTable struct {
	list   []proxy.Endpoint // sorted
	places []uint16         // which of the list it is, from 1 on
}

func newMaglev(list []proxy.Endpoint) *maglevTable {
	t := &maglevTable{slices.Clone(list), make([]uint16, maglevSize)}
	slices.SortFunc(t.list, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	next, step := make([]uint64, len(list)), make([]uint64, len(list))
	for i, e := range t.list {
		h := hash([]byte(e.Addr.String()))
		next[i], step[i] = h>>32%maglevSize, h&0xffffffff%(maglevSize-1)+1
	}
	most := slices.MaxFunc(t.list, func(a, b proxy.Endpoint) int { return a.Share() - b.Share() }).Share()
	claimed := make([]int, len(list))
	for round, free := 1, maglevSize; ; round++ {
		for i, e := range t.list {
			if claimed[i]*most >= round*e.Share() {
				continue // who counts less has its turn less often
			}
			for t.places[next[i]] != 0 {
				next[i] = (next[i] + step[i]) % maglevSize
			}
			t.places[next[i]] = uint16(i + 1)
			claimed[i]++
			if free--; free == 0 {
				return t
			}
		}
	}
}

func (t *maglevTable) of(client netip.Addr) proxy.Endpoint {
	return t.list[t.places[hash(client.AsSlice())%maglevSize]-1]
}
