package netlink

// Family is an IP family, as Linux numbers it. All packages below kernel use it.
type Family uint8

const (
	IPv4 Family = 2
	IPv6 Family = 10
)

var Families = [...]Family{IPv4, IPv6}

// String returns the family as the nft program spells it.
func (f Family) String() string { return map[Family]string{IPv4: "ip", IPv6: "ip6"}[f] }
