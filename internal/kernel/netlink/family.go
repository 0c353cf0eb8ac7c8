package netlink

import "fmt"

// Family is an IP family, numbered as the kernel does on Linux. It is that of all
// packages below kernel.
type Family uint8

// The families.
const (
	IPv4 Family = 2
	IPv6 Family = 10
)

// Families lists both.
var Families = [...]Family{IPv4, IPv6}

// String returns the family as the nft program spells it.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	default:
		return fmt.Sprintf("family %d", uint8(f))
	}
}
