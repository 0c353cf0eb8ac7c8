package resolve

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/apiobject"
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

// object names an object that can have problems.
type object struct {
	kind string
	name types.NamespacedName // without a namespace for Nodes and ServiceCIDRs
}

// configuration is what the settings are from.
var configuration = object{kind: "configuration"}

func serviceObject(name types.NamespacedName) object { return object{"Service", name} }

func sliceObject(name types.NamespacedName) object { return object{"EndpointSlice", name} }

// clusterObject names an object that has no namespace.
func clusterObject(kind, name string) object { return object{kind, types.NamespacedName{Name: name}} }

// String returns the kind and the name.
func (o object) String() string {
	switch {
	case o.name.Name == "":
		return o.kind
	case o.name.Namespace == "":
		return o.kind + " " + o.name.Name
	default:
		return o.kind + " " + o.name.String()
	}
}

func (o object) problem(field, format string, args ...any) Problem {
	return Problem{Object: o.String(), Field: field, Reason: fmt.Sprintf(format, args...)}
}

// problems returns what was found in the object.
func (o object) problems(found []apiobject.Problem) []Problem {
	var out []Problem
	for _, p := range found {
		out = append(out, o.problem(p.Field, "%s", p.Reason))
	}
	return out
}

// problemSet holds the problems of all objects that have some.
type problemSet struct {
	of     map[object][]Problem
	counts *problemCounts
}

// set replaces the problems of an object.
func (s problemSet) set(o object, list []Problem) {
	was := s.of[o]
	if slices.Equal(was, list) {
		return
	}
	for _, p := range was {
		s.counts.drop(p)
	}
	for _, p := range list {
		s.counts.add(p)
	}
	if len(list) == 0 {
		delete(s.of, o)
		return
	}
	s.of[o] = list
}

// problemCounts counts how often each problem is there, since one port that is
// lost in both families is one problem. It knows what changed, so that problems
// which stay cost nothing.
type problemCounts struct {
	now map[Problem]int
	was map[Problem]bool // what was touched since the last take: whether it was there
}

func newProblemCounts() *problemCounts {
	return &problemCounts{now: map[Problem]int{}, was: map[Problem]bool{}}
}

func (c *problemCounts) add(p Problem) {
	c.touch(p)
	c.now[p]++
}

func (c *problemCounts) drop(p Problem) {
	c.touch(p)
	if c.now[p]--; c.now[p] == 0 {
		delete(c.now, p)
	}
}

func (c *problemCounts) touch(p Problem) {
	if _, touched := c.was[p]; !touched {
		c.was[p] = c.now[p] > 0
	}
}

// TakeProblems returns, sorted, what is wrong as of the last Update that was not
// at the last call, and what is no longer. Its cost follows that change.
func (r *Resolver) TakeProblems() (found, mended []Problem) {
	for p, was := range r.problems.was {
		switch is := r.problems.now[p] > 0; {
		case is && !was:
			found = append(found, p)
		case was && !is:
			mended = append(mended, p)
		}
	}
	if len(r.problems.was) > 0 {
		// A new map, because clearing one costs what its largest content did.
		r.problems.was = map[Problem]bool{}
	}
	slices.SortFunc(found, compareProblems)
	slices.SortFunc(mended, compareProblems)
	return found, mended
}
