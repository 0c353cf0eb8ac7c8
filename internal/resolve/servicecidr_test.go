package resolve

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestServiceCIDRs(t *testing.T) {
	r := resolverOf(t)
	one, two := serviceCIDROf("one", "10.96.0.0/16", "fd00::/112"), serviceCIDROf("two", "10.96.0.0/16")
	steps := []struct {
		name    string
		do      func()
		changed bool
		want    []string
		problem int
	}{
		{"first", func() { add(t, r, one) }, true, []string{"10.96.0.0/16", "fd00::/112"}, 0},
		{"same", func() { add(t, r, one) }, false, []string{"10.96.0.0/16", "fd00::/112"}, 0},
		{"the same range twice", func() { add(t, r, two) }, false, []string{"10.96.0.0/16", "fd00::/112"}, 0},
		{"one of them goes", func() { remove(t, r, one) }, true, []string{"10.96.0.0/16"}, 0},
		{"a wider one, and a bad one", func() { add(t, r, serviceCIDROf("one", "10.0.0.0/8", "bad")) }, true, []string{"10.0.0.0/8"}, 1},
		{"all go", func() { remove(t, r, one, two) }, true, nil, 0},
	}
	for _, step := range steps {
		step.do()
		d := r.Update()
		if (d.CIDRs != nil) != step.changed {
			t.Errorf("%s: step %+v; want a change: %t", step.name, d, step.changed)
		}
		if diff := cmp.Diff(step.want, text(r.State().CIDRs)); diff != "" {
			t.Errorf("%s: ranges mismatch (-want +got):\n%s", step.name, diff)
		}
		if got := problemsOf(r); len(got) != step.problem {
			t.Errorf("%s: problems %v; want %d", step.name, got, step.problem)
		}
	}
}

// TestServiceCIDRProblemIsPending checks that a ServiceCIDR which changes only in what is
// wrong with it asks for an Update, so that the problem is reported at once.
func TestServiceCIDRProblemIsPending(t *testing.T) {
	r := resolverOf(t)
	r.Update()
	bad := serviceCIDROf("one", "bad")
	if !r.UpdateServiceCIDR(nil, bad) {
		t.Error("a ServiceCIDR with a new problem is not pending")
	}
	r.Update()
	if r.UpdateServiceCIDR(bad, bad) {
		t.Error("an unchanged ServiceCIDR is pending")
	}
	if !r.UpdateServiceCIDR(bad, nil) {
		t.Error("a ServiceCIDR whose problem is resolved is not pending")
	}
}
