package conformance

import "testing"

// TestTranslatedAtTheSocket counts the flows of unbound sockets that were.
func TestTranslatedAtTheSocket(t *testing.T) {
	for _, tc := range []struct {
		translates, may   bool
		tries, translated int
		ok                bool
	}{
		{true, true, 8, 8, true},
		{true, true, 8, 2, true},
		{true, true, 8, 1, false},
		{true, true, 8, 0, false},
		{false, true, 8, 0, true},
		{false, true, 8, 8, true},
		{false, false, 8, 0, true},
		{false, false, 8, 1, false},
	} {
		twin := &caseRun{unbound: true, translates: tc.translates, mayTranslate: tc.may, tries: tc.tries, translated: tc.translated}
		if err := (&caseRun{twin: twin}).result(); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
