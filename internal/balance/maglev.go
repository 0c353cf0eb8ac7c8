package balance

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// maglevEntries is the size of a Maglev table: a prime, and a hundred times the number of endpoints
// of most Services.
const maglevEntries = 16381

func hash(b []byte) uint64 {
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// maglevTable maps the hash of a client to an endpoint, in the same way on every node. The
// endpoints take turns in claiming the next free entry of their own permutation, so most entries
// stay as they are when an endpoint is added or removed.
type maglevTable struct {
	list    []proxy.Endpoint // sorted
	entries []uint16         // index into list plus 1; 0 means free
}

func newMaglev(list []proxy.Endpoint) *maglevTable {
	t := &maglevTable{slices.Clone(list), make([]uint16, maglevEntries)}
	slices.SortFunc(t.list, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	next, step := make([]uint64, len(list)), make([]uint64, len(list))
	for i, e := range t.list {
		h := hash([]byte(e.Addr.String()))
		next[i], step[i] = h>>32%maglevEntries, h&0xffffffff%(maglevEntries-1)+1
	}
	most := slices.MaxFunc(t.list, func(a, b proxy.Endpoint) int { return a.Share() - b.Share() }).Share()
	claimed := make([]int, len(list))
	for round, free := 1, maglevEntries; ; round++ {
		for i, e := range t.list {
			if claimed[i]*most >= round*e.Share() {
				continue // An endpoint with a lower weight claims less often.
			}
			for t.entries[next[i]] != 0 {
				next[i] = (next[i] + step[i]) % maglevEntries
			}
			t.entries[next[i]] = uint16(i + 1)
			claimed[i]++
			if free--; free == 0 {
				return t
			}
		}
	}
}

func (t *maglevTable) of(client netip.Addr) proxy.Endpoint {
	return t.list[t.entries[hash(client.AsSlice())%maglevEntries]-1]
}
