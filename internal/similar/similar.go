package similar

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

const (
	maxNames = 3 // more would not help
	maxTypos = 3
)

// Names returns the names that a word may stand for, the nearest first, at most three:
// those that begin with it, and those that one typing error in four characters makes of
// it. Exchanged neighbors are one error.
func Names(word string, all iter.Seq[string]) []string {
	type match struct {
		name  string
		typos int
	}
	var found []match
	limit := min(max(1, len(word)/4), maxTypos)
	for name := range all {
		if n := typos(word, name, limit); n <= limit {
			found = append(found, match{name, n})
		} else if strings.HasPrefix(name, word) {
			found = append(found, match{name, limit + 1})
		}
	}
	slices.SortFunc(found, func(a, b match) int { return cmp.Or(cmp.Compare(a.typos, b.typos), cmp.Compare(a.name, b.name)) })
	var out []string
	for _, m := range found[:min(len(found), maxNames)] {
		out = append(out, m.name)
	}
	return out
}

// typos returns how many characters have to be added, removed, replaced or exchanged with
// their neighbor to make b of a; if that is more than limit, a number above limit.
func typos(a, b string, limit int) int {
	for a != "" && b != "" && a[0] == b[0] { // most names in a list begin alike
		a, b = a[1:], b[1:]
	}
	if more := max(len(a), len(b)) - min(len(a), len(b)); more > limit {
		return more
	}
	var rows [3][]int // of the table of distances between prefixes: the current row and the two before it
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, now := rows[(i+1)%3], rows[(i+2)%3], rows[i%3]
		now[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			now[j] = min(last[j]+1, now[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		if best := slices.Min(now); best > limit {
			return best
		}
	}
	return rows[len(a)%3][len(b)]
}
