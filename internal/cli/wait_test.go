package cli

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"sluice/internal/statusapi"
)

// TestFollowOnly checks that only selected Services are shown.
func TestFollowOnly(t *testing.T) {
	for _, tt := range []struct {
		o    StatusOptions
		want string
	}{
		{StatusOptions{}, "a/x a/y b/x"},
		{StatusOptions{Namespace: "a"}, "a/x a/y"},
		{StatusOptions{Namespace: "a", Services: []string{"x"}}, "a/x"},
		{StatusOptions{Namespace: "a", Services: []string{"b/x", "y"}}, "a/y b/x"},
	} {
		if got := follow(t, tt.o, nil, changesOf(1, "a/x", "a/y", "b/x")); got != tt.want {
			t.Errorf("%+v shows %q, want %q", tt.o, got, tt.want)
		}
	}
}

// TestFollowNewDaemon follows a daemon that is restarted, and numbers changes from one
// again.
func TestFollowNewDaemon(t *testing.T) {
	if got := follow(t, StatusOptions{}, changesOf(900, "a/old"), nil, changesOf(1, "a/x", "a/y")); got != "a/x a/y" {
		t.Errorf("shows %q", got)
	}
}

// TestFollowTooMany checks that changes beyond a page are counted.
func TestFollowTooMany(t *testing.T) {
	if got := follow(t, StatusOptions{}, changesOf(7, "a/old"), changesOf(1308, "a/x", "a/y")); got != "a/x a/y 1,300 changes not shown: there were too many at once" {
		t.Errorf("shows %q", got)
	}
}

// TestFollowFailure checks that a Service is shown as removed only if the daemon says
// that there is no such Service.
func TestFollowFailure(t *testing.T) {
	for _, err := range []error{&statusapi.ResponseError{Code: 500, Message: "no memory"}, errors.New("no daemon")} {
		var b strings.Builder
		if got := writeChanged(t.Context(), &b, failing{err}, StatusOptions{}, "a/x"); !errors.Is(got, err) || b.Len() > 0 {
			t.Errorf("error %v, shows %q; want %v", got, b.String(), err)
		}
	}
}

type failing struct{ err error }

func (f failing) Get(context.Context, string, url.Values, any) error { return f.err }

// changesOf returns changes of Services, numbered from first, the newest first.
func changesOf(first uint64, services ...string) []statusapi.Change {
	var out []statusapi.Change
	for i, s := range services {
		out = append([]statusapi.Change{{Number: first + uint64(i), ServicePort: s + ":http/TCP/IPv4"}}, out...)
	}
	return out
}

// follow returns what Follow writes for a daemon that has other changes each time it is
// asked, and no Services.
func follow(t *testing.T, o StatusOptions, looks ...[]statusapi.Change) (shown string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{answers: map[string]any{statusapi.ChangesPath: func() any {
			now := looks[0]
			looks = looks[min(1, len(looks)-1):]
			return statusapi.ChangeList{Items: now}
		}}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*watchPeriod+watchPeriod/2)
		defer cancel()
		var b strings.Builder
		if err := Follow(ctx, &b, d, o); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSpace(line)
			if cells := strings.Fields(line); strings.Contains(line, "Removed") {
				line = cells[0] + "/" + cells[1]
			}
			shown = strings.TrimSpace(shown + " " + line)
		}
	})
	return shown
}
