package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ComparePortKeys orders keys by namespace, name, port, protocol and family.
func ComparePortKeys(a, b PortKey) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(a.Family, b.Family),
	)
}

// Outermost returns the prefixes that lie within no other of them, masked and
// sorted: the same addresses in as few, disjoint prefixes as the list allows.
func Outermost(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	out := sorted[:0]
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Contains(p.Addr()) {
			continue
		}
		out = append(out, p)
	}
	return out
}

// String returns the state as a table, one row per service port, sorted.
func (s *State) String() string {
	var b strings.Builder
	for _, k := range s.Keys() {
		fmt.Fprintln(&b, s.Rows[k])
	}
	return b.String()
}

// String returns the row as one line. Endpoints are sorted, not in slots.
func (sp *ServicePort) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v", sp.Key)
	for _, f := range sp.Frontends {
		fmt.Fprintf(&b, " %v=%v", f.Kind, f.Addr)
	}
	fmt.Fprintf(&b, " internal=%v external=%v anywhere=%t", sp.Internal, sp.External, sp.UsableSomewhere)
	fmt.Fprintf(&b, " cluster=%v local=%v", addresses(sp.Cluster), addresses(sp.Local))
	if sp.Affinity > 0 {
		fmt.Fprintf(&b, " affinity=%v", sp.Affinity)
	}
	if sp.AllowFrom != nil {
		fmt.Fprintf(&b, " from=%v", sp.AllowFrom)
	}
	if len(sp.Draining) > 0 {
		fmt.Fprintf(&b, " draining=%v", sp.Draining)
	}
	return b.String()
}

// addresses returns the endpoints' addresses, sorted.
func addresses(list []Endpoint) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(list))
	for _, e := range list {
		out = append(out, e.Addr)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}
