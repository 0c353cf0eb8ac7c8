package statusapi

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strconv"
)

// The bounds of a list. A client must not run out of memory even if an attacker
// controls the node that it reads from.
const (
	maxPages = 1000
	maxList  = 8 * maxResponse // bytes of all pages together
)

// EachPage requests all pages of a list, one after the other. It calls get for each
// page with a copy of query that also has limit and continue. get must call
// [Client.Get] with the context it receives, which bounds the bytes of all pages
// together, and returns how many items the page has and the continue token of the
// next page, empty if there is none.
func EachPage(ctx context.Context, query url.Values, get func(context.Context, url.Values) (items int, next string, err error)) error {
	remaining := int64(maxList)
	ctx = context.WithValue(ctx, listBudget{}, &remaining)
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", strconv.Itoa(MaxPage))
	for range maxPages {
		items, next, err := get(ctx, query)
		switch {
		case err != nil:
			return err
		case items > MaxPage:
			return fmt.Errorf("a page has %d items, a sluice daemon sends at most %d", items, MaxPage)
		case next == "":
			return nil
		}
		query.Set("continue", next)
	}
	return fmt.Errorf("the list has more than %d pages, a sluice daemon's has fewer", maxPages)
}

// listBudget is the context key of the number of bytes that may still be read of
// a list, a *int64.
type listBudget struct{}

// responseLimit returns how many bytes a response may have, and a function that
// deducts the bytes that were read from the list's budget.
func responseLimit(ctx context.Context) (limit int64, consume func(n int)) {
	remaining, ok := ctx.Value(listBudget{}).(*int64)
	if !ok {
		return maxResponse, func(int) {}
	}
	return min(maxResponse, *remaining), func(n int) { *remaining -= int64(n) }
}
