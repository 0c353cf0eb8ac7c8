package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/apiobject"
)

// Problem is a part of an object that cannot be used. The rest of the object is.
type Problem struct {
	Object string // the kind and the name, like "Service ns/web"
	Field  string // where in the object, like "spec.externalIPs[0]"
	Reason string
	Denied netip.Addr // the address that [Settings].Allowed does not allow; invalid for other problems
}

func (p Problem) String() string { return p.Object + ": " + p.Field + ": " + p.Reason }

// Service returns the Service that has the problem; ok is false for other objects.
func (p Problem) Service() (name types.NamespacedName, ok bool) {
	text, ok := strings.CutPrefix(p.Object, "Service ")
	name.Namespace, name.Name, _ = strings.Cut(text, "/")
	return name, ok
}

// Namespace returns the namespace of the object, or "" if it has none.
func (p Problem) Namespace() string {
	_, name, _ := strings.Cut(p.Object, " ")
	namespace, _, found := strings.Cut(name, "/")
	if !found {
		return ""
	}
	return namespace
}

func CompareProblems(a, b Problem) int {
	return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason))
}

// object identifies an object that can have problems.
type object struct {
	kind string
	name types.NamespacedName // without a namespace for Nodes and ServiceCIDRs
}

// configuration has the problems of [Settings].
var configuration = object{kind: "configuration"}

func serviceObject(name types.NamespacedName) object { return object{"Service", name} }

const sliceKind = "EndpointSlice"

func sliceObject(name types.NamespacedName) object { return object{sliceKind, name} }

// clusterObject identifies an object of a kind without namespaces.
func clusterObject(kind, name string) object { return object{kind, types.NamespacedName{Name: name}} }

func (o object) String() string {
	name := strings.TrimPrefix(o.name.String(), "/")
	return strings.TrimSuffix(o.kind+" "+name, " ")
}

func (o object) problem(field, format string, args ...any) Problem {
	return Problem{Object: o.String(), Field: field, Reason: fmt.Sprintf(format, args...)}
}

func (o object) problems(found []apiobject.Problem) []Problem {
	var out []Problem
	for _, p := range found {
		out = append(out, Problem{Object: o.String(), Field: p.Field, Reason: p.Reason, Denied: p.Denied})
	}
	return out
}

// problems counts how often each problem was found: a port that is lost in both
// families is one problem. It tracks what changed, so that the cost of TakeProblems
// does not depend on problems that persist.
type problems struct {
	now map[Problem]int
	was map[Problem]bool // for each problem counted since the last TakeProblems: whether it existed then
}

// count adds n to the count of a problem.
func (c *problems) count(p Problem, n int) {
	if _, counted := c.was[p]; !counted {
		c.was[p] = c.now[p] > 0
	}
	if c.now[p] += n; c.now[p] == 0 {
		delete(c.now, p)
	}
}

// replace replaces the problems of an object in a map of all objects with problems.
func (c *problems) replace(all map[object][]Problem, o object, list []Problem) {
	was := all[o]
	if slices.Equal(was, list) {
		return
	}
	for _, p := range was {
		c.count(p, -1)
	}
	for _, p := range list {
		c.count(p, 1)
	}
	if all[o] = list; len(list) == 0 {
		delete(all, o)
	}
}

// TakeProblems returns the problems that are new since the last call, and those that no
// longer exist, sorted. Its cost depends on how many problems changed.
func (r *Resolver) TakeProblems() (found, resolved []Problem) {
	for p, was := range r.problems.was {
		switch is := r.problems.now[p] > 0; {
		case is && !was:
			found = append(found, p)
		case was && !is:
			resolved = append(resolved, p)
		}
	}
	if len(r.problems.was) > 0 {
		// Clearing a map costs as much as its largest size ever did, so make a new one.
		r.problems.was = map[Problem]bool{}
	}
	slices.SortFunc(found, CompareProblems)
	slices.SortFunc(resolved, CompareProblems)
	return found, resolved
}
