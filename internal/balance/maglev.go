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
	for free := maglevSize; ; {
		for i, e := range t.list {
			for range e.Share() {
				for t.places[next[i]] != 0 {
					next[i] = (next[i] + step[i]) % maglevSize
				}
				t.places[next[i]] = uint16(i + 1)
				if free--; free == 0 {
					return t
				}
			}
		}
	}
}

func (t *maglevTable) of(client netip.Addr) proxy.Endpoint {
	return t.list[t.places[hash(client.AsSlice())%maglevSize]-1]
}
