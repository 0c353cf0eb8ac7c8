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

// Problem is something in an object that could not be used. All else in the
// object is in force.
type Problem struct {
	Object string // the kind and the name, like "Service ns/web"
	Field  string // where in the object, like "spec.externalIPs[0]"
	Reason string
	Denied netip.Addr // that the Service may not have, which [Settings] says; else zero
}

func (p Problem) String() string { return p.Object + ": " + p.Field + ": " + p.Reason }

// Service returns the Service whose problem it is, if it is one's.
func (p Problem) Service() (name types.NamespacedName, ok bool) {
	text, ok := strings.CutPrefix(p.Object, "Service ")
	name.Namespace, name.Name, _ = strings.Cut(text, "/")
	return name, ok
}

// Namespace returns that of the object, or nothing if it has none.
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

// object names an object that can have problems.
type object struct {
	kind string
	name types.NamespacedName // without a namespace for Nodes and ServiceCIDRs
}

// configuration is what the settings are from.
var configuration = object{kind: "configuration"}

func serviceObject(name types.NamespacedName) object { return object{"Service", name} }

// sliceKind is the kind of an object that has endpoints.
const sliceKind = "EndpointSlice"

func sliceObject(name types.NamespacedName) object { return object{sliceKind, name} }

// clusterObject names an object that has no namespace.
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

// problems counts how often each problem is there, since one port that is lost
// in both families is one problem. It knows what changed, so that problems which
// stay cost nothing.
type problems struct {
	now map[Problem]int
	was map[Problem]bool // what was touched since the last take: whether it was there
}

// count adds n to how often a problem is there.
func (c *problems) count(p Problem, n int) {
	if _, touched := c.was[p]; !touched {
		c.was[p] = c.now[p] > 0
	}
	if c.now[p] += n; c.now[p] == 0 {
		delete(c.now, p)
	}
}

// replace replaces the problems of an object among those of all that have some.
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
	slices.SortFunc(found, CompareProblems)
	slices.SortFunc(mended, CompareProblems)
	return found, mended
}
