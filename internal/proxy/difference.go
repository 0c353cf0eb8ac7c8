package proxy

import "slices"

// Part is a part of a row that users know by one name.
type Part uint8

// The parts of a row.
const (
	ClusterPart   Part = iota // the Cluster list
	LocalPart                 // the Local list
	DrainingPart              // the draining endpoints
	AddressesPart             // the frontends
	PolicyPart                // which clients are admitted, and how they are forwarded
	ElsewherePart             // whether any node has a usable endpoint
)

// rowField is a field of a row: the part that it belongs to, and how two versions of it
// are compared.
type rowField struct {
	name string
	part Part
	same func(a, b *ServicePort) bool
}

// rowFields has every field of a row but its key. The parts are in order.
var rowFields = [...]rowField{
	{"Cluster", ClusterPart, func(a, b *ServicePort) bool { return sameList(a.Cluster, b.Cluster) }},
	{"Local", LocalPart, func(a, b *ServicePort) bool { return sameList(a.Local, b.Local) }},
	{"Draining", DrainingPart, func(a, b *ServicePort) bool { return sameList(a.Draining, b.Draining) }},
	{"Frontends", AddressesPart, func(a, b *ServicePort) bool { return sameList(a.Frontends, b.Frontends) }},
	{"Internal", PolicyPart, func(a, b *ServicePort) bool { return a.Internal == b.Internal }},
	{"External", PolicyPart, func(a, b *ServicePort) bool { return a.External == b.External }},
	{"Balancing", PolicyPart, func(a, b *ServicePort) bool { return a.Balancing == b.Balancing }},
	{"Affinity", PolicyPart, func(a, b *ServicePort) bool { return a.Affinity == b.Affinity }},
	{"AllowFrom", PolicyPart, func(a, b *ServicePort) bool {
		return (a.AllowFrom == nil) == (b.AllowFrom == nil) && slices.Equal(a.AllowFrom, b.AllowFrom)
	}},
	{"HealthCheckPort", PolicyPart, func(a, b *ServicePort) bool { return a.HealthCheckPort == b.HealthCheckPort }},
	{"PreserveDestination", PolicyPart, func(a, b *ServicePort) bool { return a.PreserveDestination == b.PreserveDestination }},
	{"UsableSomewhere", ElsewherePart, func(a, b *ServicePort) bool { return a.UsableSomewhere == b.UsableSomewhere }},
}

// sameList compares lists that are often the same slice, because versions of a row share
// the lists that did not change.
func sameList[E comparable](a, b []E) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// Equal reports whether two rows with the same key are equal.
func (sp *ServicePort) Equal(other *ServicePort) bool {
	for i := range rowFields {
		if !rowFields[i].same(sp, other) {
			return false
		}
	}
	return true
}

// Changed returns the parts in which two rows with the same key differ, in order.
func (sp *ServicePort) Changed(other *ServicePort) []Part {
	var parts []Part
	for i := range rowFields {
		if f := &rowFields[i]; !f.same(sp, other) {
			parts = append(parts, f.part)
		}
	}
	return slices.Compact(parts)
}
