package nft

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Family is the protocol family of a table.
type Family = netlink.Family

const (
	IP  = netlink.IPv4
	IP6 = netlink.IPv6
)

// Table names a table.
type Table struct {
	Family Family
	Name   string
}

// String returns the table as the nft program spells it.
func (t Table) String() string { return "table " + t.Family.String() + " " + t.Name }

// Hook makes a chain a base chain.
type Hook struct {
	Type     string // "nat" or "filter"
	Number   uint32 // NF_INET_PRE_ROUTING and so on
	Priority int32
}

// Chain is a chain without its rules.
type Chain struct {
	Name    string
	Hook    *Hook // nil: reached by jumps only
	Comment string
}

// Set is a set, or a map if it has data.
type Set struct {
	Table    Table
	Name     string
	Key      []Type
	Data     []Type // nil: not a map
	Verdicts bool   // a map to verdicts; Data is nil then
	Dynamic  bool   // rules add elements, which time out
	Size     uint32 // most elements; 0: no limit
	Comment  string

	id uint32 // in its batch, of the set that a rule has to itself; else 0
}

// KeyLen returns the length of a key in bytes, with every part padded to a register.
func (s *Set) KeyLen() int { return totalLen(s.Key) }

func (s *Set) DataLen() int { return totalLen(s.Data) }

func totalLen(types []Type) int {
	n := 0
	for _, t := range types {
		n += (t.Len() + 3) &^ 3
	}
	return n
}

// Element is an element of a set. Keys and data are the raw bytes the kernel
// holds, as strings so that elements can be compared.
type Element struct {
	Key     string  // empty: it stands for all keys that no other has
	KeyEnd  string  // the end of a range, in a set that a rule has to itself
	Data    string  // a map's value; empty in sets and verdict maps
	Verdict Verdict // a verdict map's value
}

// Verdict is a verdict map's value. The zero value is none.
type Verdict struct {
	Code  Code
	Chain string // of Goto
}

// Code is the kernel's number of a verdict, plus one so that zero is none.
type Code uint32

const (
	Drop   Code = 0 + 1
	Accept Code = policyAccept + 1
	Goto   Code = 1<<32 + unix.NFT_GOTO + 1
)

// Type is the type of a part of a key or value, as the nft program names it in listings.
type Type uint8

// The types we use, with the numbers the nft program knows them by.
const (
	IPv4Addr Type = 7
	IPv6Addr Type = 8
	Proto    Type = 12
	Port     Type = 13
	Mark     Type = 19
	ClassID  Type = 23
)

var typeLens = [...]int{IPv4Addr: 4, IPv6Addr: 16, Proto: 1, Port: 2, Mark: 4, ClassID: 4}

// Len returns the length in bytes, without padding.
func (t Type) Len() int { return typeLens[t] }

// typeID packs the types of a concatenation as the nft program does, six bits each.
func typeID(types []Type) uint32 {
	var id uint32
	for _, t := range types {
		id = id<<6 | uint32(t)
	}
	return id
}

// Interface is what a dataplane needs of nf_tables.
type Interface interface {
	// Commit makes all operations of the batch happen at once, or none. When the
	// kernel refuses single operations the error is a [CommitError].
	Commit(ctx context.Context, b *Batch) error

	// List returns what is in a table, without the elements of its sets; nil
	// when there is no such table.
	List(ctx context.Context, t Table) (*Listing, error)

	// Elements calls f for every element of a set. Shortly after very many were
	// added, the kernel may leave some out or give some twice.
	Elements(ctx context.Context, s *Set, f func(Element)) error

	// Watch calls changed whenever another process changed one of the tables, or
	// may have, until ctx ends. When it has begun it calls missed, unless no other
	// process has changed anything since the connection was first used.
	Watch(ctx context.Context, tables []Table, missed func(), changed func(what string)) error

	// Close releases the handle; the kernel keeps everything.
	Close() error
}

type Listing struct {
	Chains  map[string][]ListedRule // each chain's rules, in order
	Hooks   map[string]string       // of each base chain: where it hangs, and its policy
	Sets    map[string]string       // of each set: what its elements are like
	Dormant bool                    // the whole table is switched off
}

// String returns where a base chain hangs, as a listing has it of one that
// accepts what its rules leave.
func (h *Hook) String() string {
	return hookShape(encoded(Op{Kind: AddChain, Chain: &Chain{Hook: h}}))
}

func hookShape(a netlink.Attrs) string {
	hook := a.Get(unix.NFTA_CHAIN_HOOK)
	return fmt.Sprintf("type %s hook %d priority %d policy %d", a.Text(unix.NFTA_CHAIN_TYPE),
		hook.Number(unix.NFTA_HOOK_HOOKNUM), int32(hook.Number(unix.NFTA_HOOK_PRIORITY)), a.Number(unix.NFTA_CHAIN_POLICY))
}

// Shape returns what the elements of the set are like, as a listing has it.
func (s *Set) Shape() string { return setShape(encoded(Op{Kind: AddSet, Set: s})) }

func setShape(a netlink.Attrs) string {
	data, dataLen := a.Number(unix.NFTA_SET_DATA_TYPE), a.Number(unix.NFTA_SET_DATA_LEN)
	if data == unix.NFT_DATA_VERDICT {
		dataLen = 0 // the kernel tells the size of its own verdicts
	}
	return fmt.Sprintf("flags %#x key %d/%d data %d/%d", a.Number(unix.NFTA_SET_FLAGS),
		a.Number(unix.NFTA_SET_KEY_TYPE), a.Number(unix.NFTA_SET_KEY_LEN), data, dataLen)
}
