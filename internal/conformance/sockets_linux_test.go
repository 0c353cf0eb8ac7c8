package conformance

import "testing"

// TestTranslatedAtTheSocket checks the required share of flows translated at the socket.
func TestTranslatedAtTheSocket(t *testing.T) {
	for _, tc := range []struct {
		translates        float64
		tries, translated int
		ok                bool
	}{
		{1, 8, 8, true},
		{1, 8, 2, true},
		{1, 8, 1, false},
		{1, 8, 0, false},
		{0.5, 8, 8, true},
		{0.5, 8, 1, true},
		{0.5, 8, 0, false},
		{0, 8, 0, true},
		{0, 8, 1, false},
	} {
		twin := &caseRun{unbound: true, wantTranslated: tc.translates, tries: tc.tries, translated: tc.translated}
		if err := (&caseRun{unboundRun: twin}).result(); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
