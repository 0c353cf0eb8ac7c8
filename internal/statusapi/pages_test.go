package statusapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// endless is a node that an attacker controls: every page has a next one.
type endless struct {
	items, bytes int // of a page
	pages        int // that were requested
}

func (e *endless) RoundTrip(*http.Request) (*http.Response, error) {
	e.pages++
	text := `{"items":[` + strings.TrimSuffix(strings.Repeat("{},", e.items), ",") + `],"continue":"1"`
	text += strings.Repeat(" ", max(0, e.bytes-len(text)-1)) + "}"
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{VersionHeader: {Version}}, Body: io.NopCloser(strings.NewReader(text))}, nil
}

// TestEachPageIsBounded checks that reading ends soon, whatever a node sends.
func TestEachPageIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name  string
		node  endless
		pages int
		says  string
	}{
		{"pages", endless{items: 1}, maxPages, "more than 1000 pages"},
		{"items of a page", endless{items: MaxPage + 1}, 1, "a page has 501 items"},
		{"bytes of a page", endless{bytes: maxResponse + 1}, 1, "longer than a sluice daemon's"},
		{"bytes of a list", endless{bytes: 1000}, 3, "longer than a sluice daemon's"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := At(&http.Client{Transport: &tt.node}, "http://node", "node-1")
			err := EachPage(t.Context(), nil, func(ctx context.Context, query url.Values) (int, string, error) {
				if left := ctx.Value(listBudget{}).(*int64); *left == maxList && tt.node.bytes == 1000 {
					*left = 2500 // so that fewer pages exhaust it
				}
				var page ServiceList
				err := c.Get(ctx, ServicesPath, query, &page)
				return len(page.Items), page.Continue, err
			})
			if err == nil || !strings.Contains(err.Error(), tt.says) || tt.node.pages != tt.pages {
				t.Errorf("%v after %d pages, want %q after %d", err, tt.node.pages, tt.says, tt.pages)
			}
		})
	}
}

// TestEachPage checks that every page of a list is requested, and that the caller's
// query stays unchanged.
func TestEachPage(t *testing.T) {
	query := url.Values{"namespace": {"shop"}}
	var asked []string
	end := errors.New("end")
	err := EachPage(t.Context(), query, func(_ context.Context, q url.Values) (int, string, error) {
		if asked = append(asked, q.Encode()); len(asked) == 2 {
			return 0, "", end
		}
		return MaxPage, "500", nil
	})
	want := "limit=500&namespace=shop continue=500&limit=500&namespace=shop"
	if got := strings.Join(asked, " "); got != want || !errors.Is(err, end) || len(query) != 1 {
		t.Errorf("asked %s of %v, error %v; want %s", got, query, err, want)
	}
}
