package nftables

import (
	"slices"
	"strings"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/nft"
)

// id identifies an object in a table.
type id struct {
	kind kind
	t    *table
	set  *nft.Set // for a set or an element
	key  string   // an element's key or a chain's name
}

type kind uint8

const (
	kindTable kind = iota
	kindSet
	kindChain
	kindElement
	kindKubeProxyTable // kube-proxy's table of the same family
)

// value is the content of an object.
type value struct {
	data  string // an element's data; in a verdict map, the chain to go to
	chain *chain // for a chain, and for an element of @classes
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// sameValue reports whether two values are equal. Elements of @classes are compared by
// data: listed ones have no chain.
func sameValue(a, b value) bool {
	return a.data == b.data && (a.chain == nil || b.chain == nil || slices.Equal(a.chain.listed(), b.chain.listed()))
}

// sharing says which objects several rows may use. Unused classes stay for a while:
// a Service whose endpoints come and go will need them again, and a packet may
// already carry the number of one. Chains of source ranges may be large, so they are
// deleted with the last row that uses them.
func sharing(x id) differ.Sharing {
	switch {
	case x.kind == kindChain && strings.HasPrefix(x.key, clientsPrefix):
		return differ.Shared
	case x.kind == kindChain || x.set == x.t.classSet:
		return differ.Lingers
	case x.set == x.t.clusterIPs || x.set == x.t.onLink || x.set == x.t.hairpins:
		return differ.Shared
	default:
		return differ.Unshared
	}
}

// Ranks of changes, which are written in ascending order. An object is added before
// and deleted after everything that refers to it.
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

// order says when a change is written. The table may be in use, so endpoints are
// added before anything refers to them, and deleted when nothing does any more.
func order(_ *changes, c *change) differ.Order {
	switch x := c.ID; {
	case x.kind == kindKubeProxyTable:
		return differ.Order{Rank: rankLive, Group: "live"}
	case x.kind == kindTable:
		return differ.Order{Rank: rankTable}
	case x.kind == kindSet && !c.Has:
		return differ.Order{Rank: rankChains}
	case x.kind == kindSet:
		return differ.Order{Rank: rankSet}
	case x.kind == kindChain && !c.Has && strings.HasPrefix(x.key, rememberPrefix):
		return differ.Order{Rank: rankChains + 1} // chains of classes jump to them
	case x.kind == kindChain && !c.Has:
		return differ.Order{Rank: rankChains}
	case x.kind == kindChain && c.New.chain.Hook != nil:
		return differ.Order{Rank: rankLive, Group: "live"}
	case x.kind == kindChain && c.New.chain.rank == rankConstant:
		return differ.Order{Rank: rankConstant, Group: "constant"} // they jump to each other
	case x.kind == kindChain:
		return differ.Order{Rank: c.New.chain.rank}
	case !c.Has:
		return differ.Order{Rank: rankGoing - x.t.rank[x.set]}
	default:
		return differ.Order{Rank: x.t.rank[x.set]}
	}
}

// size estimates how many bytes a change takes in a batch.
func size(c *change) int {
	n := 64
	switch c.ID.kind {
	case kindSet:
		n = 256
	case kindChain:
		if c.Has {
			n = 128
			for _, r := range c.New.chain.rules {
				n += 512 + 5*len(r.Ranges) // a range of 8 bytes takes 40
			}
		}
	case kindElement:
		n = 40 + len(c.ID.key) + max(len(c.Old.data), len(c.New.data))
		if c.Had && c.Has {
			n *= 2
		}
	}
	return n
}

// element returns the element with the ID x and the value v. In a verdict map, an
// element without data accepts the packet.
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

// text returns the nft command that adds the element.
func (x id) text(v value) string {
	op := nft.Op{Kind: nft.AddElement, Table: x.t.Table, Set: x.set, Element: x.element(v)}
	return op.Text()
}

// elementObject returns an element that the kernel listed as an object. A verdict that
// we never write becomes a value that equals none of ours.
func (t *table) elementObject(s *nft.Set, e nft.Element) (id, value) {
	v := value{data: e.Data}
	if s.Verdicts {
		if v.data = e.Verdict.Chain; e.Verdict.Code != nft.Accept && e.Verdict.Code != nft.Goto {
			v.data = "not ours"
		}
	}
	return id{kindElement, t, s, e.Key}, v
}
