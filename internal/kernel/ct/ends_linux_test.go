package ct_test

import (
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ct/cttest"
)

// translated are flows to Services, in a namespace that has those of tracked too.
var translated = []ct.Flow{
	toService(udp, "10.1.0.7:5000", "10.96.0.10:53", "10.1.0.2:5353"),
	toService(tcp, "10.1.0.8:5000", "10.96.0.11:80", "10.1.0.3:8080"),
	toService(tcp, "[fd00::7]:5000", "[fd96::b]:80", "[fd00::3]:8080"),
}

func toService(protocol uint8, src, dst, by string) ct.Flow {
	f := flow(protocol, src, dst, by)
	f.Translated = true
	return f
}

// TestEndsContract holds the kernel and the Fake to the same behaviour.
func TestEndsContract(t *testing.T) {
	implementations := map[string]func(*testing.T) (ct.Interface, ct.Ends){
		"kernel": func(t *testing.T) (ct.Interface, ct.Ends) {
			c := openInNamespace(t, tracked)
			ends, err := ct.OpenEnds()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ends.Close() })
			for i := range translated {
				if err := c.Translate(&translated[i]); err != nil {
					t.Fatalf("translate %v: %v", &translated[i], err)
				}
			}
			return c, ends
		},
		"fake": func(*testing.T) (ct.Interface, ct.Ends) {
			k := cttest.NewFake()
			k.Add(tracked...)
			k.Add(translated...)
			return k, k
		},
	}
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			k, ends := open(t)
			wantEach(t, k, translated...)
			wantEnds(t, ends)
			deleteThe(t, k, tracked[0])
			wantEnds(t, ends) // nothing is told of flows that are no Service's
			for _, f := range []ct.Flow{translated[0], translated[2]} {
				deleteThe(t, k, f)
			}
			wantEach(t, k, translated[1])
			wantEnds(t, ends, translated[0], translated[2])
			wantEnds(t, ends)
		})
	}
}

func wantEach(t *testing.T, k ct.Interface, want ...ct.Flow) {
	t.Helper()
	var got []ct.Flow
	if err := k.Each(t.Context(), func() { got = nil }, func(f *ct.Flow) { got = append(got, *f) }); err != nil {
		t.Fatal(err)
	}
	compareFlows(t, want, got)
}

func wantEnds(t *testing.T, ends ct.Ends, want ...ct.Flow) {
	t.Helper()
	var got []ct.Flow
	if err := ends.Take(func(f *ct.Flow) { got = append(got, *f) }); err != nil {
		t.Fatal(err)
	}
	compareFlows(t, want, got)
}

func compareFlows(t *testing.T, want, got []ct.Flow) {
	t.Helper()
	bySource := func(a, b ct.Flow) int { return a.Orig.Src.Compare(b.Orig.Src) }
	want = slices.Clone(want)
	slices.SortFunc(want, bySource)
	slices.SortFunc(got, bySource)
	if diff := gocmp.Diff(want, got, addresses, cmpopts.IgnoreFields(ct.Flow{}, "ID"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("flows mismatch (-want +got):\n%s", diff)
	}
}

// TestKernelFiltersTranslated wants the kernel to send no other flows, if it can.
func TestKernelFiltersTranslated(t *testing.T) {
	c := openInNamespace(t, tracked)
	if err := c.Translate(&translated[0]); err != nil {
		t.Fatal(err)
	}
	wantEach(t, c, translated[0])
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if old := unix.ByteSliceToString(u.Release[:]) < "6"; c.Parsed() != 1 && !(old && c.Parsed() == 1+len(tracked)) {
		t.Errorf("%d messages for one flow", c.Parsed())
	}
}
