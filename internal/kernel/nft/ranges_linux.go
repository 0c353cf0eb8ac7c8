package nft

import (
	"bytes"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// Ranges are ranges of addresses: the first and the last one of each, one after the
// other, in order. None touches another: not all kernels take that.
type Ranges string

// OwnSet is what names of sets begin with that rules have to themselves. Such a
// set is made with the rule, never changes, and goes with it all at once.
const OwnSet = "__set"

// RangesOf returns the ranges of prefixes that are sorted and share no address.
func RangesOf(prefixes []netip.Prefix) Ranges {
	var b []byte
	for _, p := range prefixes {
		first := p.Masked().Addr().AsSlice()
		last := slices.Clone(first)
		for i := p.Bits(); i < len(last)*8; i++ {
			last[i/8] |= 0x80 >> (i % 8)
		}
		if n := len(b) - len(first); n > 0 && after(string(b[n:])) == string(first) {
			b = append(b[:n], last...)
		} else {
			b = append(append(b, first...), last...)
		}
	}
	return Ranges(b)
}

// All gives the first and the last address of each range.
func (r Ranges) All(f Family) iter.Seq2[string, string] {
	n := addressType(f).Len()
	return func(yield func(first, last string) bool) {
		for s := string(r); len(s) >= 2*n && yield(s[:n], s[n:2*n]); {
			s = s[2*n:]
		}
	}
}

// text returns the ranges as the nft program writes a set of them.
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
	end bool // it is the first one that is not in the range
}

// joined returns the ranges that elements are the bounds of, in whatever order they
// are; none if these are not ranges of addresses.
func joined(f Family, all []bound) Ranges {
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
			out = append(out, before(x.key)...)
		}
		open = !x.end
	}
	if open {
		out = append(out, bytes.Repeat([]byte{0xff}, addressType(f).Len())...)
	}
	return Ranges(out)
}

// after returns the next key; empty if there is none.
func after(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return string(b)
		}
	}
	return ""
}

// before returns the key that comes before another one than the first.
func before(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return string(b)
}
