package nft

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// OpKind is the kind of an operation.
type OpKind uint8

const (
	AddTable OpKind = iota
	DeleteTable
	AddChain
	FlushChain
	DeleteChain
	AddRule
	AddSet
	DeleteSet
	AddElement
	DeleteElement
)

// opEncodings has for each kind of operation its name in the nft program, and its netlink
// message: number, flags, and the attribute for the name of the object in the table.
var opEncodings = [...]struct {
	text                 string
	message, flags, name uint16
}{
	AddTable:      {"add table", unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, 0},
	DeleteTable:   {"delete table", unix.NFT_MSG_DELTABLE, 0, 0},
	AddChain:      {"add chain", unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFTA_CHAIN_NAME},
	FlushChain:    {"flush chain", unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_CHAIN},
	DeleteChain:   {"delete chain", unix.NFT_MSG_DELCHAIN, 0, unix.NFTA_CHAIN_NAME},
	AddRule:       {"add rule", unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, unix.NFTA_RULE_CHAIN},
	AddSet:        {"add set", unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, unix.NFTA_SET_NAME},
	DeleteSet:     {"delete set", unix.NFT_MSG_DELSET, 0, unix.NFTA_SET_NAME},
	AddElement:    {"add element", unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, unix.NFTA_SET_ELEM_LIST_SET},
	DeleteElement: {"delete element", unix.NFT_MSG_DELSETELEM, 0, unix.NFTA_SET_ELEM_LIST_SET},
}

func (k OpKind) String() string { return opEncodings[k].text }

// Op is an operation of a [Batch].
type Op struct {
	Kind    OpKind
	Table   Table
	Chain   *Chain  // AddChain, FlushChain, DeleteChain, AddRule
	Rule    *Rule   // AddRule
	Set     *Set    // AddSet, DeleteSet, AddElement, DeleteElement; AddRule: its anonymous set, if any
	Element Element // AddElement, DeleteElement
	Owned   bool    // AddTable: the kernel deletes the table when the connection closes
	Owner   any     // what the operation was added for; it identifies the cause of an error
}

// name returns the name of the object in the table; empty for the table itself.
func (o *Op) name() string {
	switch {
	case o.Chain != nil:
		return o.Chain.Name
	case o.Set != nil:
		return o.Set.Name
	default:
		return ""
	}
}

func (o *Op) String() string {
	s := strings.TrimSpace(fmt.Sprintf("%v %v %s", o.Kind, o.Table, o.name()))
	if o.Element.Key != "" {
		s += fmt.Sprintf(" %x", o.Element.Key)
	}
	return s
}

// Batch is a list of operations that are applied atomically. Adding a table, chain, set or
// element that exists already is not an error, unless the chain has another hook, the set
// another type or the element another value. Deleting something that does not exist is an error.
type Batch struct {
	Ops   []Op
	Owner any // the Owner of operations that are added from now on
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	clear(b.Ops)
	b.Ops, b.Owner = b.Ops[:0], nil
}

func (b *Batch) add(op Op) {
	op.Owner = b.Owner
	b.Ops = append(b.Ops, op)
}

func (b *Batch) AddTable(t Table)           { b.add(Op{Kind: AddTable, Table: t}) }
func (b *Batch) AddChain(t Table, c *Chain) { b.add(Op{Kind: AddChain, Table: t, Chain: c}) }
func (b *Batch) AddSet(s *Set)              { b.add(Op{Kind: AddSet, Table: s.Table, Set: s}) }

// DeleteTable deletes a table and everything in it.
func (b *Batch) DeleteTable(t Table) { b.add(Op{Kind: DeleteTable, Table: t}) }

// FlushChain deletes all rules of a chain.
func (b *Batch) FlushChain(t Table, name string) {
	b.add(Op{Kind: FlushChain, Table: t, Chain: &Chain{Name: name}})
}

// DeleteChain deletes a chain that nothing refers to.
func (b *Batch) DeleteChain(t Table, name string) {
	b.add(Op{Kind: DeleteChain, Table: t, Chain: &Chain{Name: name}})
}

// DeleteSet deletes a set that no rule refers to, with its elements.
func (b *Batch) DeleteSet(t Table, name string) {
	b.add(Op{Kind: DeleteSet, Table: t, Set: &Set{Table: t, Name: name}})
}

// AddRule appends a rule to a chain, after adding the anonymous set of its ranges if it
// has any.
func (b *Batch) AddRule(t Table, chain string, r *Rule) {
	op := Op{Kind: AddRule, Table: t, Chain: &Chain{Name: chain}, Rule: r}
	if r.Ranges != "" {
		op.Set = &Set{Table: t, Name: AnonymousSetPrefix + "%d", Key: []Type{addressType(t.Family)}, id: uint32(len(b.Ops) + 1)}
		b.AddSet(op.Set)
		for first, last := range r.Ranges.All(t.Family) {
			b.AddElement(op.Set, Element{Key: first, KeyEnd: last})
		}
	}
	b.add(op)
}

func (b *Batch) AddElement(s *Set, e Element) {
	b.add(Op{Kind: AddElement, Table: s.Table, Set: s, Element: e})
}

// DeleteElement deletes an element of a set; only its key matters.
func (b *Batch) DeleteElement(s *Set, e Element) {
	b.add(Op{Kind: DeleteElement, Table: s.Table, Set: s, Element: Element{Key: e.Key}})
}

// Failure is one refused operation.
type Failure struct {
	Op  *Op
	Err error
}

// CommitError says which operations of a batch the kernel refused. Nothing of the batch
// was applied.
type CommitError struct {
	Failures []Failure
}

func (e *CommitError) Error() string {
	s := fmt.Sprintf("%v: %v", e.Failures[0].Op, e.Failures[0].Err)
	if n := len(e.Failures) - 1; n > 0 {
		s += fmt.Sprintf(" (and %d more)", n)
	}
	return s
}

func (e *CommitError) Unwrap() []error {
	errs := make([]error, 0, len(e.Failures))
	for _, f := range e.Failures {
		errs = append(errs, f.Err)
	}
	return errs
}

// ErrUncertain is wrapped by errors after which it is not known whether the kernel applied
// the batch.
var ErrUncertain = errors.New("the kernel's answer was lost")
