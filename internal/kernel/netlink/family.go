package netlink

// Family is an IP family, numbered as the kernel does on Linux. It is that of all
// packages below kernel.
type Family uint8

const (
	IPv4 Family = 2
	IPv6 Family = 10
)

var Families = [...]Family{IPv4, IPv6}

// String returns the family as the nft program spells it.
func (f Family) String() string { return map[Family]string{IPv4: "ip", IPv6: "ip6"}[f] }
