package ipt

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Family is the protocol family a program works on.
type Family uint8

// The families. The zero value is none.
const (
	IPv4 Family = iota + 1
	IPv6
)

// Families returns both families.
func Families() []Family { return []Family{IPv4, IPv6} }

// program returns the name that all programs of the family begin with.
func (f Family) program() string {
	switch f {
	case IPv4:
		return "iptables"
	case IPv6:
		return "ip6tables"
	default:
		panic(fmt.Sprintf("unknown family %d", uint8(f)))
	}
}

// domain returns the family as the kernel numbers it.
func (f Family) domain() uint8 {
	if f == IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Variant is which of the kernel's two tables a program works on. A host may
// hold rules in both.
type Variant uint8

// The variants. The zero value is none.
const (
	NFT    Variant = iota + 1 // tables of nf_tables, such as "table ip nat"
	Legacy                    // tables of ip_tables and ip6_tables
)

// Variants returns both variants.
func Variants() []Variant { return []Variant{NFT, Legacy} }

// String returns the variant as programs are called after it.
func (v Variant) String() string {
	switch v {
	case NFT:
		return "nft"
	case Legacy:
		return "legacy"
	default:
		return fmt.Sprintf("variant %d", uint8(v))
	}
}

// Name returns what a variant for a family is called, such as "ip6tables-legacy".
func Name(f Family, v Variant) string { return f.program() + "-" + v.String() }

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

	// Stamp returns what tells a change of the tables, at no cost to speak of.
	Stamp(ctx context.Context) (Stamp, error)

	// Packets returns how many packets have matched the rules of a chain that
	// have a comment, since they were written; 0 if there are none. It costs what
	// the chain is with the nft variant, and what the table is with the legacy
	// one, and may be called beside other methods.
	Packets(ctx context.Context, table, chain, comment string) (uint64, error)

	// Restore takes lines as iptables-restore --noflush does. A table's lines
	// take effect all at once or not at all; with several tables, those before
	// the refused one have taken effect. When a line is refused the error is a
	// [RestoreError]. A restore that has begun goes on to its end when ctx ends.
	Restore(ctx context.Context, input []byte) error
}

// Table is a table and its chains, the built-in ones first.
type Table struct {
	Name   string
	Chains []Chain
}

// Chain is a chain and its rules.
type Chain struct {
	Name   string
	Policy string   // of a built-in chain; empty if the chain was made by somebody
	Rules  []string // without "-A" and the chain's name, in order
}

// Uses is, by table and chain, how many rules a chain has and how many rules go
// to it, added up: a chain that loses a rule or a way in has fewer.
type Uses map[string]map[string]int

// RestoreError is a refused line of a Restore.
type RestoreError struct {
	Line int    // counted from one
	Text string // the line
	Err  error  // what the program said
}

// Error names the line.
func (e *RestoreError) Error() string {
	return fmt.Sprintf("restore line %d %q: %v", e.Line, e.Text, e.Err)
}

// Unwrap returns what the program said.
func (e *RestoreError) Unwrap() error { return e.Err }
