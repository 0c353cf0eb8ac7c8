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

// Table identifies a table.
type Table struct {
	Family Family
	Name   string
}

// String returns the table as the nft program prints it.
func (t Table) String() string { return "table " + t.Family.String() + " " + t.Name }

// Hook makes a chain a base chain, whose policy is to accept.
type Hook struct {
	Type     string // "filter", "nat" or "route"
	Number   uint32 // NF_INET_PRE_ROUTING and so on
	Priority int32
}

// Chain is a chain without its rules.
type Chain struct {
	Name string
	Hook *Hook // nil if the chain is reached by jumps only
}

// Set is a set, or a map if it has Data or Verdicts.
type Set struct {
	Table    Table
	Name     string
	Key      []Type
	Data     []Type // of a map; nil for sets and verdict maps
	Verdicts bool   // a verdict map
	Dynamic  bool   // rules add elements, which time out
	Size     uint32 // maximum number of elements; 0: no limit
	Comment  string

	id uint32 // the number of an anonymous set in its batch; 0 for named sets
}

// KeyLen returns the length of a key in bytes, with every part padded to a register.
func (s *Set) KeyLen() int { return totalLen(s.Key) }

// DataLen returns the length of a map's value in bytes, with every part padded to a register.
func (s *Set) DataLen() int { return totalLen(s.Data) }

func totalLen(types []Type) int {
	n := 0
	for _, t := range types {
		n += (t.Len() + 3) &^ 3
	}
	return n
}

// Element is an element of a set. Keys and data are the raw bytes that the kernel
// holds, as strings so that elements are comparable.
type Element struct {
	Key     string  // empty for the catch-all element
	KeyEnd  string  // the last key of a range, in an anonymous set
	Data    string  // a map's value; empty in sets and verdict maps
	Verdict Verdict // a verdict map's value
}

// Verdict is a verdict map's value. The zero value means that there is none.
type Verdict struct {
	Code  Code
	Chain string // the target of Goto
}

// Code is the kernel's number of a verdict plus one, so that zero means none.
type Code uint32

const (
	Drop   Code = 0 + 1
	Accept Code = policyAccept + 1
	Goto   Code = 1<<32 + unix.NFT_GOTO + 1
)

// Type is the type of a part of a key or value, which the nft program needs for listings.
type Type uint8

// The types that we use, with the numbers that the nft program assigns to them.
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

// Interface is the part of nf_tables that a dataplane needs.
type Interface interface {
	// Commit applies all operations of the batch atomically, or none of them. If the
	// kernel refuses single operations, the error is a [CommitError].
	Commit(ctx context.Context, b *Batch) error

	// List returns the content of a table without the elements of its sets, or nil if
	// there is no such table.
	List(ctx context.Context, t Table) (*Listing, error)

	// Elements calls f for every element of a set. Shortly after very many elements were
	// added, the kernel may leave some out.
	Elements(ctx context.Context, s *Set, f func(Element)) error

	// Watch calls changed whenever another process changed one of the tables, or may
	// have, until ctx ends. When it starts watching it calls missed, unless it is certain
	// that no other process has changed anything since the connection was first used.
	Watch(ctx context.Context, tables []Table, missed func(), changed func(what string)) error

	// Close closes the connection; everything in the kernel stays, except for tables that
	// the connection owns.
	Close() error
}

// Listing is the content of a table, by name, without the elements of its sets.
type Listing struct {
	Chains  map[string][]ListedRule // each chain's rules, in order
	Hooks   map[string]string       // each base chain's type, hook, priority and policy, as [Hook.String] has them
	Sets    map[string]string       // each set's flags and types, as [Set.Shape] has them
	Dormant bool                    // the table is dormant: its rules have no effect
}

// String returns the hook as a [Listing] has it for a base chain with the policy accept.
func (h *Hook) String() string {
	return hookShape(encodeAttrs(Op{Kind: AddChain, Chain: &Chain{Hook: h}}))
}

func hookShape(a netlink.Attrs) string {
	hook := a.Get(unix.NFTA_CHAIN_HOOK)
	return fmt.Sprintf("type %s hook %d priority %d policy %d", a.Text(unix.NFTA_CHAIN_TYPE),
		hook.Number(unix.NFTA_HOOK_HOOKNUM), int32(hook.Number(unix.NFTA_HOOK_PRIORITY)), a.Number(unix.NFTA_CHAIN_POLICY))
}

// Shape returns the set's flags and types as a [Listing] has them.
func (s *Set) Shape() string { return setShape(encodeAttrs(Op{Kind: AddSet, Set: s})) }

func setShape(a netlink.Attrs) string {
	data, dataLen := a.Number(unix.NFTA_SET_DATA_TYPE), a.Number(unix.NFTA_SET_DATA_LEN)
	if data == unix.NFT_DATA_VERDICT {
		dataLen = 0 // the kernel reports the size of its internal representation
	}
	return fmt.Sprintf("flags %#x key %d/%d data %d/%d", a.Number(unix.NFTA_SET_FLAGS),
		a.Number(unix.NFTA_SET_KEY_TYPE), a.Number(unix.NFTA_SET_KEY_LEN), data, dataLen)
}
