package resolve

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Problem is something in an object that could not be used. All else in the
// object is in force.
type Problem struct {
	Object string // the kind and the name, like "Service ns/web"
	Field  string // where in the object, like "spec.externalIPs[0]"
	Reason string
}

// String returns the problem as one line.
func (p Problem) String() string { return p.Object + ": " + p.Field + ": " + p.Reason }

func compareProblems(a, b Problem) int {
	return cmp.Or(
		cmp.Compare(a.Object, b.Object),
		cmp.Compare(a.Field, b.Field),
		cmp.Compare(a.Reason, b.Reason),
	)
}

// objectKind is the kind of an object that can have problems.
type objectKind uint8

const (
	kindConfiguration objectKind = iota
	kindService
	kindEndpointSlice
	kindNode
	kindServiceCIDR
)

func (k objectKind) String() string {
	switch k {
	case kindConfiguration:
		return "configuration"
	case kindService:
		return "Service"
	case kindEndpointSlice:
		return "EndpointSlice"
	case kindNode:
		return "Node"
	case kindServiceCIDR:
		return "ServiceCIDR"
	default:
		panic(fmt.Sprintf("unknown object kind %d", uint8(k)))
	}
}

// object names an object.
type object struct {
	kind objectKind
	name types.NamespacedName
}

// clusterObject names an object that has no namespace.
func clusterObject(k objectKind, name string) object {
	return object{k, types.NamespacedName{Name: name}}
}

// String returns the kind and the name.
func (o object) String() string {
	switch {
	case o.name.Name == "":
		return o.kind.String()
	case o.name.Namespace == "":
		return o.kind.String() + " " + o.name.Name
	default:
		return o.kind.String() + " " + o.name.String()
	}
}

// report collects the problems of one object.
type report struct {
	object   object
	problems []Problem
}

func (r *report) add(field, format string, args ...any) {
	p := Problem{Object: r.object.String(), Field: field, Reason: fmt.Sprintf(format, args...)}
	r.problems = append(r.problems, p)
}

// indexed returns the path of a list's item.
func indexed(list string, i int, rest string) string {
	return fmt.Sprintf("%s[%d]%s", list, i, rest)
}

// problemSet holds the problems of all objects that have some.
type problemSet struct {
	of    map[object][]Problem
	tally *tally
}

// set replaces the problems of an object.
func (s problemSet) set(o object, list []Problem) {
	was := s.of[o]
	if slices.Equal(was, list) {
		return
	}
	for _, p := range was {
		s.tally.drop(p)
	}
	for _, p := range list {
		s.tally.add(p)
	}
	if len(list) == 0 {
		delete(s.of, o)
		return
	}
	s.of[o] = list
}

// tally counts how often each problem is there, since one port that is lost in
// both families is one problem. It knows what changed, so that problems which
// stay cost nothing.
type tally struct {
	counts map[Problem]int
	was    map[Problem]bool // what was touched since the last take: whether it was there
}

func newTally() *tally { return &tally{counts: map[Problem]int{}, was: map[Problem]bool{}} }

func (t *tally) add(p Problem) {
	t.touch(p)
	t.counts[p]++
}

func (t *tally) drop(p Problem) {
	t.touch(p)
	if t.counts[p]--; t.counts[p] == 0 {
		delete(t.counts, p)
	}
}

func (t *tally) touch(p Problem) {
	if _, touched := t.was[p]; !touched {
		t.was[p] = t.counts[p] > 0
	}
}

// TakeProblems returns, sorted, what is wrong as of the last Update that was not
// at the last call, and what is no longer. Its cost follows that change.
func (r *Resolver) TakeProblems() (found, mended []Problem) {
	t := r.tally
	if len(t.was) == 0 {
		return nil, nil
	}
	for p, was := range t.was {
		switch is := t.counts[p] > 0; {
		case is && !was:
			found = append(found, p)
		case was && !is:
			mended = append(mended, p)
		}
	}
	t.was = map[Problem]bool{}
	slices.SortFunc(found, compareProblems)
	slices.SortFunc(mended, compareProblems)
	return found, mended
}
