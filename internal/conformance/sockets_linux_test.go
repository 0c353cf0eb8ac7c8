package conformance

import "testing"

// TestTranslatedAtTheSocket counts the flows of unbound sockets that were.
func TestTranslatedAtTheSocket(t *testing.T) {
	for _, tc := range []struct {
		translates        bool
		tries, translated int
		ok                bool
	}{
		{true, 8, 8, true},
		{true, 8, 2, true},
		{true, 8, 1, false},
		{true, 8, 0, false},
		{false, 8, 0, true},
		{false, 8, 1, false},
	} {
		twin := &caseRun{unbound: true, translates: tc.translates, tries: tc.tries, translated: tc.translated}
		if err := (&caseRun{twin: twin}).result(); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
