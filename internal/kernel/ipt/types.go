package ipt

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"sluice/internal/kernel/netlink"
)

// Family is the IP family that a program works on.
type Family = netlink.Family

const (
	IPv4 = netlink.IPv4
	IPv6 = netlink.IPv6
)

func Families() []Family { return netlink.Families[:] }

// program returns the common prefix of the names of a family's programs.
func program(f Family) string { return f.String() + "tables" }

// Variant is which of the kernel's two implementations of tables a program works
// on. A host may have rules in both. The zero value is no variant.
type Variant uint8

const (
	NFT    Variant = iota + 1 // tables of nf_tables, such as "table ip nat"
	Legacy                    // tables of ip_tables and ip6_tables
)

func Variants() []Variant { return []Variant{NFT, Legacy} }

// String returns the variant as it appears in the names of programs.
func (v Variant) String() string { return [...]string{"no variant", "nft", "legacy"}[v] }

// Name returns the name of a family and variant, such as "ip6tables-legacy".
func Name(f Family, v Variant) string { return program(f) + "-" + v.String() }

var (
	// ErrMissing means that the host has no programs for a variant and family.
	ErrMissing = errors.New("not installed")

	// ErrLocked means that the lock was not released within LockWait.
	ErrLocked = errors.New("another program holds the xtables lock")
)

// Interface gives access to the tables of one variant and family.
type Interface interface {
	// Save returns the tables that are in use. It creates none.
	Save(ctx context.Context) ([]Table, error)

	// Uses counts the rules of chains and the jumps to them, without running a
	// program and without creating a table. Its cost is proportional to the number
	// of chains with the nft variant, and to the size of the tables with the legacy
	// variant.
	Uses(ctx context.Context) (Uses, error)

	// Stamp returns a value that differs after the tables have changed. Its cost is
	// negligible unless it is thorough. With the legacy variant, only a thorough
	// stamp, which reads the tables, shows that a rule was replaced by another of
	// the same length.
	Stamp(ctx context.Context, thorough bool) (Stamp, error)

	// Packets returns how many packets the rules of a chain that have the comment
	// have matched since they were written, or 0 if there are none. It reads the
	// chain with the nft variant, and the table with the legacy variant. It may be
	// called concurrently with other methods.
	Packets(ctx context.Context, table, chain, comment string) (uint64, error)

	// Counters calls f for every rule of a table, in the format of Save, with the
	// number of packets it has matched. It runs a program that reads the table, and
	// may be called concurrently with other methods.
	Counters(ctx context.Context, table string, f func(chain, rule string, packets uint64)) error

	// Restore executes the input of iptables-restore --noflush. The lines of one
	// table take effect all at once or not at all. Tables are committed one by one:
	// if a line is refused, the tables before that of the line have taken effect,
	// and the error is a [RestoreError]. The end of ctx does not interrupt a restore
	// that has begun.
	Restore(ctx context.Context, input []byte) error
}

// Table is a table and its chains, the built-in ones first.
type Table struct {
	Name       string
	Chains     []Chain
	Unreadable bool // only the nft program can list it, so that its chains are not known
}

type Chain struct {
	Name   string
	Policy string   // of a built-in chain; empty if the chain is not built in
	Rules  []string // without "-A" and the chain's name, in order
}

// Uses is, by table and chain, the number of rules in the chain plus the number of
// rules that jump to it. A chain that loses either has fewer uses.
type Uses map[string]map[string]int

// UsesOf counts the uses of chains in saved tables.
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

// Stamp identifies a state of the tables. With the nft variant it is the number of
// transactions of nf_tables; with the legacy variant it is the sizes of the tables
// and the checksums that the last thorough stamp computed.
type Stamp struct {
	Generation uint32
	sizes      map[string]tableSize // nil with the nft variant
}

// tableSize is the size of a legacy table, and a checksum of its rules; 0 if that is
// not known. Each rule is an entry; a chain that is not built in has two more.
type tableSize struct {
	entries, bytes, sum uint32
}

// Change is by how many chains and rules a restore makes a table grow.
type Change struct {
	Table         string
	Chains, Rules int
}

// LeadsTo reports whether the given changes alone lead from stamp s to now, without
// a change by another process: every table of a restore is one transaction, and
// adds or removes a known number of entries. Without changes it reports whether
// the stamps are equal.
func (s Stamp) LeadsTo(now Stamp, changes ...Change) bool {
	if s.sizes == nil && now.sizes == nil {
		return now.Generation-s.Generation == uint32(len(changes))
	}
	want := map[string]tableSize{}
	maps.Copy(want, s.sizes)
	for _, c := range changes {
		want[c.Table] = tableSize{
			entries: want[c.Table].entries + uint32(2*c.Chains+c.Rules),
			bytes:   now.sizes[c.Table].bytes, // cannot be predicted: it depends on the rules
		}
	}
	return maps.EqualFunc(want, now.sizes, func(a, b tableSize) bool {
		if a.sum == 0 || b.sum == 0 {
			a.sum = b.sum
		}
		return a == b
	})
}

// RestoreError is the error of a Restore of which a line was refused.
type RestoreError struct {
	Line int    // counted from one
	Text string // the line
	Err  error  // with what the program printed
}

func (e *RestoreError) Error() string {
	return fmt.Sprintf("restore line %d %q: %v", e.Line, e.Text, e.Err)
}

func (e *RestoreError) Unwrap() error { return e.Err }
