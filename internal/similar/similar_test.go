package similar

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	names := []string{"web", "web-admin", "weblog", "cart", "checkout", "from", "namespace", "node"}
	for word, want := range map[string]string{
		"wen": "web", "we": "web web-admin weblog", "form": "from", "namespcae": "namespace", "namespaces": "namespace",
		"chekout": "checkout", "ceckuot": "", "crat": "cart", "car": "cart", "xyz": "", strings.Repeat("x", 1000): "",
	} {
		if got := strings.Join(Names(word, slices.Values(names)), " "); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

// TestTypos compares a few distances that were counted by hand.
func TestTypos(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"ab", "ba", 1}, {"abc", "cba", 2}, {"kitten", "sitting", 3}, {"abcd", "acbd", 1}, {"a", "bb", 2}} {
		for _, pair := range [][2]string{{tt.a, tt.b}, {tt.b, tt.a}} {
			if got := typos(pair[0], pair[1], 10); got != tt.want {
				t.Errorf("%q: %d, want %d", pair, got, tt.want)
			}
		}
	}
}

func BenchmarkNames(b *testing.B) {
	var all []string
	for i := range 30000 {
		all = append(all, fmt.Sprintf("a-long-name-of-a-service-%05d", i))
	}
	for b.Loop() {
		Names("a-long-name-of-a-service-1234", slices.Values(all))
	}
}
