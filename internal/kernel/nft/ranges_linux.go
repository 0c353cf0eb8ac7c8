package nft

import (
	"bytes"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// Ranges are sorted ranges of addresses, encoded as the first and the last address of each,
// concatenated. Adjacent ranges are joined, because not all kernels accept them.
type Ranges string

// AnonymousSetPrefix is the prefix of the names of anonymous sets. Such a set is added
// together with the rule that uses it, never changes, and is deleted together with the rule.
const AnonymousSetPrefix = "__set"

// RangesOf returns the ranges of prefixes, which must be sorted and not overlap.
func RangesOf(prefixes []netip.Prefix) Ranges {
	var b []byte
	for _, p := range prefixes {
		first := p.Masked().Addr().AsSlice()
		last := slices.Clone(first)
		for i := p.Bits(); i < len(last)*8; i++ {
			last[i/8] |= 0x80 >> (i % 8)
		}
		if n := len(b) - len(first); n > 0 && nextKey(string(b[n:])) == string(first) {
			b = append(b[:n], last...)
		} else {
			b = append(append(b, first...), last...)
		}
	}
	return Ranges(b)
}

// All returns an iterator over the first and the last address of each range.
func (r Ranges) All(f Family) iter.Seq2[string, string] {
	n := addressType(f).Len()
	return func(yield func(first, last string) bool) {
		for s := string(r); len(s) >= 2*n && yield(s[:n], s[n:2*n]); {
			s = s[2*n:]
		}
	}
}

// text returns the ranges as nft prints an anonymous set.
func (r Ranges) text(f Family) string {
	var parts []string
	for first, last := range r.All(f) {
		part := addressText([]byte(first))
		if last != first {
			part += "-" + addressText([]byte(last))
		}
		parts = append(parts, part)
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}

func addressType(f Family) Type {
	if f == IP6 {
		return IPv6Addr
	}
	return IPv4Addr
}

// bound is an element of a set of ranges, as the kernel has it.
type bound struct {
	key string
	end bool // the key is the first one after the range
}

// rangesFromBounds returns the ranges that elements of a set, in any order, are the bounds
// of. It returns none if they are not ranges of addresses.
func rangesFromBounds(f Family, all []bound) Ranges {
	slices.SortFunc(all, func(a, b bound) int { return strings.Compare(a.key, b.key) })
	var out []byte
	open := false
	for _, x := range all {
		switch {
		case len(x.key) != addressType(f).Len(), !x.end && open:
			return ""
		case !x.end:
			out = append(out, x.key...)
		case open:
			out = append(out, previousKey(x.key)...)
		}
		open = !x.end
	}
	if open {
		out = append(out, bytes.Repeat([]byte{0xff}, addressType(f).Len())...)
	}
	return Ranges(out)
}

// nextKey returns the key after key; empty if there is none.
func nextKey(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return string(b)
		}
	}
	return ""
}

// previousKey returns the key before key, which must not be the first one.
func previousKey(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return string(b)
}
