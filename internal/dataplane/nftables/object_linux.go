package nftables

import (
	"slices"
	"strings"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/nft"
)

// id names what is in a table.
type id struct {
	kind kind
	t    *table
	set  *nft.Set // of a set or an element
	key  string   // an element's key; a chain's name
}

type kind uint8

const (
	aTable kind = iota
	aSet
	aChain
	anElement
	otherTable // kube-proxy's, of the same family
)

// value is what an object is like.
type value struct {
	data  string // of an element; the chain that a class leads to
	chain *chain // of a chain or a class
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// same reports whether two values are. Where a class leads, data says.
func same(a, b value) bool {
	return a.data == b.data && (a.chain == nil || b.chain == nil || slices.Equal(a.chain.listed(), b.chain.listed()))
}

// sharing says which objects belong to several rows. Classes stay for a while: a
// Service whose endpoints come and go will need them again, and a packet may
// be on its way to one. A list of clients may be long and goes at once.
func sharing(x id) differ.Sharing {
	switch {
	case x.kind == aChain && strings.HasPrefix(x.key, toClients):
		return differ.Shared
	case x.kind == aChain || x.set == x.t.classSet:
		return differ.Lingers
	case x.set == x.t.clusterIPs || x.set == x.t.onLink || x.set == x.t.hairpins:
		return differ.Shared
	default:
		return differ.Unshared
	}
}

// Ranks of changes. What is referred to comes before what refers to it, and goes
// after that.
const (
	rankTable = iota
	rankSet
	rankConstant
	rankRemember
	rankClass
	rankElements
	rankLive   = 100
	rankGoing  = 2 * rankLive
	rankChains = 3 * rankLive
)

// order says when a change is written. The table may be live: endpoints come
// before anything leads to them, and go after nothing does.
func order(_ *changes, c *change) differ.Order {
	switch x := c.ID; {
	case x.kind == otherTable:
		return differ.Order{Rank: rankLive, Group: "live"}
	case x.kind == aTable:
		return differ.Order{Rank: rankTable}
	case x.kind == aSet && !c.Has:
		return differ.Order{Rank: rankChains}
	case x.kind == aSet:
		return differ.Order{Rank: rankSet}
	case x.kind == aChain && !c.Has && strings.HasPrefix(x.key, toRemember):
		return differ.Order{Rank: rankChains + 1} // chains of classes lead to them
	case x.kind == aChain && !c.Has:
		return differ.Order{Rank: rankChains}
	case x.kind == aChain && c.New.chain.Hook != nil:
		return differ.Order{Rank: rankLive, Group: "live"}
	case x.kind == aChain && c.New.chain.rank == rankConstant:
		return differ.Order{Rank: rankConstant, Group: "constant"} // they lead to each other
	case x.kind == aChain:
		return differ.Order{Rank: c.New.chain.rank}
	case !c.Has:
		return differ.Order{Rank: rankGoing - x.t.rank[x.set]}
	default:
		return differ.Order{Rank: x.t.rank[x.set]}
	}
}

// size estimates what a change takes in a batch, in bytes.
func size(c *change) int {
	n := 64
	switch c.ID.kind {
	case aSet:
		n = 256
	case aChain:
		if c.Has {
			n = 128
			for _, r := range c.New.chain.rules {
				n += 512 + 5*len(r.Ranges) // a range of 8 bytes takes 40
			}
		}
	case anElement:
		n = 40 + len(c.ID.key) + max(len(c.Old.data), len(c.New.data))
		if c.Had && c.Has {
			n *= 2
		}
	}
	return n
}

func (x id) element(v value) nft.Element {
	e := nft.Element{Key: x.key, Data: v.data}
	if x.set.Verdicts {
		e.Data, e.Verdict = "", nft.Verdict{Code: nft.Accept}
		if v.data != "" {
			e.Verdict = nft.Verdict{Code: nft.Goto, Chain: v.data}
		}
	}
	return e
}

// text returns an element as the nft program would be told to add it.
func (x id) text(v value) string {
	op := nft.Op{Kind: nft.AddElement, Table: x.t.Table, Set: x.set, Element: x.element(v)}
	return op.Text()
}

// object returns the element of a set as an object.
func (t *table) object(s *nft.Set, e nft.Element) (id, value) {
	v := value{data: e.Data}
	if s.Verdicts {
		if v.data = e.Verdict.Chain; e.Verdict.Code != nft.Accept && e.Verdict.Code != nft.Goto {
			v.data = "not ours"
		}
	}
	return id{anElement, t, s, e.Key}, v
}
