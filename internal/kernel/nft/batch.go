package nft

import (
	"errors"
	"fmt"
	"strings"
)

// OpKind is what an operation does.
type OpKind uint8

// The kinds of operation.
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
	numOpKinds
)

// String returns the kind in the nft program's words.
func (k OpKind) String() string {
	names := [numOpKinds]string{
		"add table", "delete table", "add chain", "flush chain", "delete chain", "add rule",
		"add set", "delete set", "add element", "delete element",
	}
	if k < numOpKinds {
		return names[k]
	}
	panic(fmt.Sprintf("unknown operation %d", uint8(k)))
}

// Op is one operation of a batch.
type Op struct {
	Kind    OpKind
	Table   Table
	Chain   *Chain  // AddChain, FlushChain, DeleteChain, AddRule
	Rule    *Rule   // AddRule
	Set     *Set    // AddSet, DeleteSet, AddElement, DeleteElement
	Element Element // AddElement, DeleteElement
	Owner   any     // whoever asked for it, for the error
}

// String names the operation and its object.
func (o *Op) String() string {
	switch {
	case o.Set != nil && (o.Kind == AddElement || o.Kind == DeleteElement):
		return fmt.Sprintf("%v %v %s %x", o.Kind, o.Table, o.Set.Name, o.Element.Key)
	case o.Set != nil:
		return fmt.Sprintf("%v %v %s", o.Kind, o.Table, o.Set.Name)
	case o.Chain != nil:
		return fmt.Sprintf("%v %v %s", o.Kind, o.Table, o.Chain.Name)
	default:
		return fmt.Sprintf("%v %v", o.Kind, o.Table)
	}
}

// Batch is a list of operations that happen at once or not at all. Adding what
// is there already is no error, except for an element with another value.
type Batch struct {
	Ops   []Op
	Owner any // the owner of the operations added from now on
	bytes int
}

// Bytes estimates the size of the batch on the wire.
func (b *Batch) Bytes() int { return b.bytes }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	clear(b.Ops)
	b.Ops, b.Owner, b.bytes = b.Ops[:0], nil, 0
}

func (b *Batch) add(op Op, bytes int) {
	op.Owner = b.Owner
	b.Ops = append(b.Ops, op)
	b.bytes += bytes
}

// AddTable adds a table.
func (b *Batch) AddTable(t Table) { b.add(Op{Kind: AddTable, Table: t}, 64) }

// DeleteTable deletes a table and everything in it.
func (b *Batch) DeleteTable(t Table) { b.add(Op{Kind: DeleteTable, Table: t}, 64) }

// AddChain adds a chain.
func (b *Batch) AddChain(t Table, c *Chain) { b.add(Op{Kind: AddChain, Table: t, Chain: c}, 128) }

// FlushChain deletes all rules of a chain.
func (b *Batch) FlushChain(t Table, name string) {
	b.add(Op{Kind: FlushChain, Table: t, Chain: &Chain{Name: name}}, 64)
}

// DeleteChain deletes a chain that nothing refers to.
func (b *Batch) DeleteChain(t Table, name string) {
	b.add(Op{Kind: DeleteChain, Table: t, Chain: &Chain{Name: name}}, 64)
}

// AddRule appends a rule to a chain.
func (b *Batch) AddRule(t Table, chain string, r *Rule) {
	b.add(Op{Kind: AddRule, Table: t, Chain: &Chain{Name: chain}, Rule: r}, 512)
}

// AddSet adds a set.
func (b *Batch) AddSet(s *Set) { b.add(Op{Kind: AddSet, Table: s.Table, Set: s}, 256) }

// DeleteSet deletes a set that no rule refers to.
func (b *Batch) DeleteSet(s *Set) { b.add(Op{Kind: DeleteSet, Table: s.Table, Set: s}, 64) }

// AddElement adds an element to a set.
func (b *Batch) AddElement(s *Set, e Element) {
	b.add(Op{Kind: AddElement, Table: s.Table, Set: s, Element: e}, elementBytes(&e))
}

// DeleteElement deletes an element of a set; only its key matters.
func (b *Batch) DeleteElement(s *Set, e Element) {
	b.add(Op{Kind: DeleteElement, Table: s.Table, Set: s, Element: e}, elementBytes(&e))
}

func elementBytes(e *Element) int {
	return 40 + len(e.Key) + len(e.KeyEnd) + len(e.Data) + len(e.Verdict.Chain)
}

// String returns the batch as text, one operation a line.
func (b *Batch) String() string {
	var s strings.Builder
	for i := range b.Ops {
		fmt.Fprintln(&s, b.Ops[i].String())
	}
	return s.String()
}

// Failure is one refused operation.
type Failure struct {
	Op  *Op
	Err error
}

// CommitError says which operations of a batch were refused. Nothing of the
// batch has happened.
type CommitError struct {
	Failures []Failure
}

// Error names the first refused operation.
func (e *CommitError) Error() string {
	f := e.Failures[0]
	s := fmt.Sprintf("%v: %v", f.Op, f.Err)
	if n := len(e.Failures) - 1; n > 0 {
		s += fmt.Sprintf(" (and %d more)", n)
	}
	return s
}

// Unwrap returns the refusals' causes.
func (e *CommitError) Unwrap() []error {
	errs := make([]error, 0, len(e.Failures))
	for _, f := range e.Failures {
		errs = append(errs, f.Err)
	}
	return errs
}

// ErrUncertain is wrapped by an error after which it is not known whether the
// kernel took the batch.
var ErrUncertain = errors.New("the kernel's answer was lost")
