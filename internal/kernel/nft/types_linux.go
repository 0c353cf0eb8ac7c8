package nft

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Family is the protocol family of a table.
type Family = netlink.Family

// The families of tables we use.
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
	Interval bool   // elements are ranges, in concatenations too
	Dynamic  bool   // rules add elements, which time out
	Size     uint32 // most elements; 0: no limit
	Comment  string
}

// KeyLen returns the length of a key in bytes, with every part padded to a register.
func (s *Set) KeyLen() int { return totalLen(s.Key) }

// DataLen returns the length of the data in bytes.
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
	Key     string
	KeyEnd  string  // the end of a range; empty in plain sets
	Data    string  // a map's value; empty in sets and verdict maps
	Verdict Verdict // a verdict map's value
}

// Verdict is a verdict map's value. The zero value is none.
type Verdict struct {
	Code  Code
	Chain string // of Goto
}

// Code is a verdict, numbered from one so that zero is none.
type Code uint8

// The verdicts we use as values.
const (
	Drop Code = iota + 1
	Accept
	Goto
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

// Len returns the length in bytes, without padding.
func (t Type) Len() int {
	switch t {
	case IPv4Addr, Mark, ClassID:
		return 4
	case IPv6Addr:
		return 16
	case Proto:
		return 1
	case Port:
		return 2
	default:
		panic(fmt.Sprintf("unknown nft type %d", uint8(t)))
	}
}

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

	// Watch calls changed whenever somebody else changed one of the tables, or
	// may have, until ctx ends. When it has begun it calls missed, unless nobody
	// else has changed anything since the connection was first used.
	Watch(ctx context.Context, tables []Table, missed func(), changed func(what string)) error

	// Close releases the handle; the kernel keeps everything.
	Close() error
}

// Listing is what List found.
type Listing struct {
	Chains  map[string][]ListedRule // each chain's rules, in order
	Sets    map[string]string       // the comment of each set
	Hooks   map[string]string       // of each base chain: where it hangs, and its policy
	Types   map[string]string       // of each set: what its elements are like
	Dormant bool                    // the whole table is switched off
}

// String returns where a base chain hangs, as a listing tells it of one that
// accepts what its rules leave.
func (h *Hook) String() string { return hookShape(h.Type, h.Number, h.Priority, policyAccept) }

func hookShape(kind string, number uint32, priority int32, policy uint32) string {
	return fmt.Sprintf("type %s hook %d priority %d policy %d", kind, number, priority, policy)
}

// Shape returns what the elements of the set are like, as a listing tells it.
func (s *Set) Shape() string {
	return setShape(s.flags(), typeID(s.Key), uint32(s.KeyLen()), s.dataType(), uint32(s.DataLen()))
}

func setShape(flags, key, keyLen, data, dataLen uint32) string {
	if data == verdictType {
		dataLen = 0 // the kernel tells the size of its own verdicts
	}
	return fmt.Sprintf("flags %#x key %d/%d data %d/%d", flags, key, keyLen, data, dataLen)
}

func (s *Set) dataType() uint32 {
	if s.Verdicts {
		return verdictType
	}
	return typeID(s.Data)
}

func (s *Set) isMap() bool { return s.Data != nil || s.Verdicts }

func (s *Set) concatenatesRanges() bool { return s.Interval && len(s.Key) > 1 }

func (s *Set) flags() uint32 {
	var f uint32
	for flag, set := range map[uint32]bool{
		unix.NFT_SET_INTERVAL:                    s.Interval,
		setFlagConcat:                            s.concatenatesRanges(),
		unix.NFT_SET_MAP:                         s.isMap(),
		unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT: s.Dynamic,
	} {
		if set {
			f |= flag
		}
	}
	return f
}
