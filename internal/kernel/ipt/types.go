package ipt

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"sluice/internal/kernel/netlink"
)

// Family is the protocol family a program works on.
type Family = netlink.Family

const (
	IPv4 = netlink.IPv4
	IPv6 = netlink.IPv6
)

func Families() []Family { return netlink.Families[:] }

// program returns the name that all programs of a family begin with.
func program(f Family) string { return f.String() + "tables" }

// Variant is which of the kernel's two tables a program works on. A host may
// hold rules in both.
type Variant uint8

// The variants. The zero value is none.
const (
	NFT    Variant = iota + 1 // tables of nf_tables, such as "table ip nat"
	Legacy                    // tables of ip_tables and ip6_tables
)

func Variants() []Variant { return []Variant{NFT, Legacy} }

// String returns the variant as programs are called after it.
func (v Variant) String() string { return [...]string{"no variant", "nft", "legacy"}[v] }

// Name returns what a variant for a family is called, such as "ip6tables-legacy".
func Name(f Family, v Variant) string { return program(f) + "-" + v.String() }

var (
	// ErrMissing says that the host has no programs for a variant and family.
	ErrMissing = errors.New("not installed")

	// ErrLocked says that another program held the lock all the time we waited.
	ErrLocked = errors.New("another program holds the xtables lock")
)

// Interface is the tables of one variant and family.
type Interface interface {
	// Save returns the tables that are in use, and makes none.
	Save(ctx context.Context) ([]Table, error)

	// Uses counts what chains hold, without programs and without making a table.
	// Its cost is that of the chains with the nft variant, and that of the
	// tables with the legacy one.
	Uses(ctx context.Context) (Uses, error)

	// Stamp returns what tells a change of the tables, at no cost to speak of. The
	// legacy tables tell no one that a rule was replaced by another of the same
	// length: that shows when a stamp is thorough, which reads them.
	Stamp(ctx context.Context, thorough bool) (Stamp, error)

	// Packets returns how many packets have matched the rules of a chain that
	// have a comment, since they were written; 0 if there are none. It costs what
	// the chain is with the nft variant, and what the table is with the legacy
	// one, and may be called beside other methods.
	Packets(ctx context.Context, table, chain, comment string) (uint64, error)

	// Counters calls f for every rule of a table, as Save has it, with how many
	// packets it has matched. It costs what the table is, in a program, and may be
	// called beside other methods.
	Counters(ctx context.Context, table string, f func(chain, rule string, packets uint64)) error

	// Restore takes lines as iptables-restore --noflush does. A table's lines
	// take effect all at once or not at all; with several tables, those before
	// the refused one have taken effect. When a line is refused the error is a
	// [RestoreError]. A restore that has begun goes on to its end when ctx ends.
	Restore(ctx context.Context, input []byte) error
}

// Table is a table and its chains, the built-in ones first.
type Table struct {
	Name       string
	Chains     []Chain
	Unreadable bool // it has rules that only the nft program can list, so that no chains are known
}

type Chain struct {
	Name   string
	Policy string   // of a built-in chain; empty if the chain is not built in
	Rules  []string // without "-A" and the chain's name, in order
}

// Uses is, by table and chain, how many rules a chain has and how many rules go
// to it, added up: a chain that loses a rule or a way in has fewer.
type Uses map[string]map[string]int

// UsesOf counts what was saved.
func UsesOf(tables []Table) Uses {
	uses := Uses{}
	for _, t := range tables {
		for _, c := range t.Chains {
			uses.add(t.Name, c.Name, len(c.Rules))
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				if _, ok := uses[t.Name][Target(r)]; ok {
					uses.add(t.Name, Target(r), 1)
				}
			}
		}
	}
	return uses
}

func (u Uses) add(table, chain string, n int) {
	if u[table] == nil {
		u[table] = map[string]int{}
	}
	u[table][chain] += n
}

// Stamp is a number of the kernel's that moves when tables change: of nf_tables
// how many transactions there were, of the legacy tables their sizes, and sums of
// what a thorough stamp last read.
type Stamp struct {
	Generation uint32
	sizes      map[string]tableSize // nil: of nf_tables
}

// tableSize is the size of a legacy table, and a sum of its rules if that is known. An
// entry is a rule; a chain that is not built in has two more.
type tableSize struct {
	entries, bytes, sum uint32
}

// Change is what a restore does to a table, by how many more chains and rules
// there are afterwards.
type Change struct {
	Table         string
	Chains, Rules int
}

// Became reports whether these changes, and none by other processes, make the stamp
// another one: every table that is restored is a transaction, and adds or takes
// away a known number of entries. Without changes it reports whether the two
// are equal.
func (s Stamp) Became(now Stamp, changes ...Change) bool {
	if s.sizes == nil && now.sizes == nil {
		return now.Generation-s.Generation == uint32(len(changes))
	}
	want := map[string]tableSize{}
	maps.Copy(want, s.sizes)
	for _, c := range changes {
		want[c.Table] = tableSize{
			entries: want[c.Table].entries + uint32(2*c.Chains+c.Rules),
			bytes:   now.sizes[c.Table].bytes, // which depends on what the rules are
		}
	}
	return maps.EqualFunc(want, now.sizes, func(a, b tableSize) bool {
		if a.sum == 0 || b.sum == 0 { // it is not known
			a.sum = b.sum
		}
		return a == b
	})
}

// RestoreError is a refused line of a Restore.
type RestoreError struct {
	Line int    // counted from one
	Text string // the line
	Err  error  // what the program said
}

func (e *RestoreError) Error() string {
	return fmt.Sprintf("restore line %d %q: %v", e.Line, e.Text, e.Err)
}

func (e *RestoreError) Unwrap() error { return e.Err }
