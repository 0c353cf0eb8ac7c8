package statusapi

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strconv"
)

// The bounds of a list: a node may be in other hands.
const (
	maxPages = 1000
	maxList  = 8 * maxAnswer // bytes, of all pages together
)

// EachPage asks for all pages of a list, one after the other. Each time get asks for
// what it is given, and returns how many items came and where the next page begins.
func EachPage(ctx context.Context, query url.Values, get func(context.Context, url.Values) (items int, next string, err error)) error {
	left := int64(maxList)
	ctx = context.WithValue(ctx, leftOfList{}, &left)
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
			return fmt.Errorf("a page has %d items, and no daemon's more than %d", items, MaxPage)
		case next == "":
			return nil
		}
		query.Set("continue", next)
	}
	return fmt.Errorf("the list goes on after %d pages, which no daemon's does", maxPages)
}

// leftOfList is the key of how many bytes may still come of a list.
type leftOfList struct{}

// allowed returns how many bytes may come, and takes those from the list's that did.
func allowed(ctx context.Context) (most int64, take func(n int)) {
	left, ok := ctx.Value(leftOfList{}).(*int64)
	if !ok {
		return maxAnswer, func(int) {}
	}
	return min(maxAnswer, *left), func(n int) { *left -= int64(n) }
}
