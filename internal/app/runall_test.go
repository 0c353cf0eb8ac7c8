package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRunAll checks that all jobs end when one ends, and that the error names all
// that failed.
func TestRunAll(t *testing.T) {
	lasting := func(ctx context.Context) error { <-ctx.Done(); return nil }
	failing := func(text string) func(context.Context) error {
		return func(context.Context) error { return errors.New(text) }
	}
	late := func(ctx context.Context) error { <-ctx.Done(); return errors.New("cannot close") }
	for _, c := range []struct {
		name string
		jobs []job
		want string
	}{
		{"told to stop", []job{{"a", lasting}, {"b", lasting}}, ""},
		{"one fails", []job{{"read objects", failing("folder gone")}, {"sync", lasting}}, "read objects: folder gone"},
		{"one fails, another cannot end well", []job{{"a", failing("gone")}, {"b", late}}, "a: gone\nb: cannot close"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				began, got := time.Now(), ""
				if err := runAll(ctx, c.jobs); err != nil {
					got = err.Error()
				}
				if got != c.want {
					t.Errorf("error %q, want %q", got, c.want)
				}
				if took := time.Since(began); (took == time.Minute) != (c.want == "") {
					t.Errorf("ended after %v", took)
				}
			})
		})
	}
}
