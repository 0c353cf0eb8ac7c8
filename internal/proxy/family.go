package proxy

import (
	"fmt"
	"net/netip"
)

// Family is an IP family. The zero value is IPv4.
type Family uint8

const (
	IPv4 Family = iota
	IPv6
)

var Families = [...]Family{IPv4, IPv6}

var families = [...]struct {
	name        string
	bits        int
	unspecified netip.Addr
	loopback    netip.Prefix
}{
	{"IPv4", 32, netip.IPv4Unspecified(), netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)},
	{"IPv6", 128, netip.IPv6Unspecified(), netip.PrefixFrom(netip.IPv6Loopback(), 128)},
}

// FamilyOf returns the family of an address. IPv4-mapped IPv6 addresses count as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) String() string          { return families[f].name }
func (f Family) Unspecified() netip.Addr { return families[f].unspecified }
func (f Family) Loopback() netip.Prefix  { return families[f].loopback }
func (f Family) Bits() int               { return families[f].bits }

// Protocol is a transport protocol, numbered as in the IP header.
type Protocol uint8

// The transport protocols that a Service port may have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

var protocolNames = map[Protocol]string{TCP: "TCP", UDP: "UDP", SCTP: "SCTP"}

func (p Protocol) String() string {
	if name, ok := protocolNames[p]; ok {
		return name
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// EndsStaleFlows reports whether flows of the protocol are ended when their endpoint
// is gone. TCP has its own timeouts and resets. The conntrack entry of a UDP client
// that never stops sending would never expire, that of an SCTP association would
// last for hours.
func (p Protocol) EndsStaleFlows() bool { return p == UDP || p == SCTP }

// AddrOf returns the first address of a family, or the invalid address if there is none.
func AddrOf(addrs []netip.Addr, f Family) netip.Addr {
	for _, a := range addrs {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}
