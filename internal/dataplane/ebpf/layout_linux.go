package ebpf

import (
	"encoding/binary"
	"net/netip"

	"sluice/internal/proxy"
)

// Keys and values of the maps, laid out as the structs of sockets.c. Numbers are in the
// byte order of the machine, addresses and ports in network byte order.
type (
	frontendKey    [20]byte
	serviceValue   [20]byte
	slotKey        [8]byte
	endpointValue  [24]byte
	memberKey      [24]byte
	memberValue    [4]byte
	addrKey        [16]byte
	netnsKey       [16]byte
	netnsValue     [40]byte
	settings       [24]byte
	connectionsKey [40]byte
	trafficCounts  [5]uint64
	liveSocket     [88]byte
)

// Actions of a frontend for an origin.
const (
	actionTranslate = 1
	actionLocalList = 2
)

// Flags of the settings.
const (
	flagCountBytes = 1
	flagCutting    = 2
)

// Flags of the node's addresses.
const (
	addrTakesNodePorts = 1
	addrInPodRange     = 2
	addrIsLoopback     = 4
)

// Flags of endpoints.
const (
	endpointMayBeLocal     = 1 // it may be on this node, and so have one of the addresses of the node
	endpointInServiceRange = 2
)

// Indices of the map counters.
const (
	translatedTCP uint32 = 0
	translatedUDP uint32 = 1
	cutPackets    uint32 = 3
)

// originUnknown is the origin of a namespace whose sockets the programs leave alone.
const originUnknown = uint32(len(proxy.Origins))

// localSlotBit marks slots of the Local list.
const localSlotBit = 1 << 31

// ipVersion is how keys name a family.
var ipVersion = [...]uint8{proxy.IPv4: 4, proxy.IPv6: 6}

// checksum returns the checksum that values carry over their key and themselves. With it
// programs detect that the memory of an entry was reused while they read it.
func checksum(parts ...[]byte) uint32 {
	sum := uint32(1)
	for _, words := range parts {
		for ; len(words) > 0; words = words[4:] {
			sum = (sum ^ binary.NativeEndian.Uint32(words)) * 0x9e3779b1
			sum ^= sum >> 15
		}
	}
	return sum
}

func putAddrPort(b []byte, a netip.AddrPort) {
	ip := a.Addr().As16()
	copy(b, ip[:])
	binary.BigEndian.PutUint16(b[16:], a.Port())
}

// addrPort reads an address and a port at these offsets.
func addrPort(b []byte, addr, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[addr:])).Unmap(), binary.BigEndian.Uint16(b[port:]))
}

func makeFrontendKey(p proxy.Protocol, f proxy.Frontend) (k frontendKey) {
	if f.Kind == proxy.NodePort {
		binary.BigEndian.PutUint16(k[16:], f.Addr.Port())
		k[19] = ipVersion[proxy.FamilyOf(f.Addr.Addr())]
	} else {
		putAddrPort(k[:], f.Addr)
	}
	k[18] = byte(p)
	return k
}

// makeServiceValue returns the value of a frontend. Counts are the lengths of the lists, by
// scope.
func makeServiceValue(k frontendKey, row uint32, counts [2]int, actions [len(proxy.Origins)]byte) (v serviceValue) {
	binary.NativeEndian.PutUint32(v[:], row)
	binary.NativeEndian.PutUint32(v[4:], uint32(counts[proxy.ScopeCluster]))
	binary.NativeEndian.PutUint32(v[8:], uint32(counts[proxy.ScopeLocal]))
	copy(v[12:], actions[:])
	binary.NativeEndian.PutUint32(v[16:], checksum(k[:], v[:16]))
	return v
}

// makeSlotKey returns the key of slot i of a list.
func makeSlotKey(row uint32, s proxy.Scope, i int) (k slotKey) {
	if s == proxy.ScopeLocal {
		i |= localSlotBit
	}
	binary.NativeEndian.PutUint32(k[:], row)
	binary.NativeEndian.PutUint32(k[4:], uint32(i))
	return k
}

func makeEndpointValue(k slotKey, e proxy.Endpoint, inServiceRange bool) (v endpointValue) {
	var flags uint16
	if e.Local || e.NodeUnknown {
		flags |= endpointMayBeLocal
	}
	if inServiceRange {
		flags |= endpointInServiceRange
	}
	putAddrPort(v[:], e.Addr)
	binary.NativeEndian.PutUint16(v[18:], flags)
	binary.NativeEndian.PutUint32(v[20:], checksum(k[:], v[:20]))
	return v
}

// makeMemberKey returns the key of a draining endpoint.
func makeMemberKey(row uint32, a netip.AddrPort) (k memberKey) {
	binary.NativeEndian.PutUint32(k[:], row)
	putAddrPort(k[4:], a)
	return k
}

func makeNetnsKey(cookie uint64, f proxy.Family) (k netnsKey) {
	binary.NativeEndian.PutUint64(k[:], cookie)
	binary.NativeEndian.PutUint32(k[8:], uint32(ipVersion[f]))
	return k
}

// makeNetnsValue returns what is known about a network namespace until a monotonic time:
// the source address of its connections, and their origin.
func makeNetnsValue(k netnsKey, source netip.Addr, origin uint32, until uint64) (v netnsValue) {
	copy(v[:8], k[:8])
	binary.NativeEndian.PutUint64(v[8:], until)
	ip := source.As16()
	copy(v[16:], ip[:])
	binary.NativeEndian.PutUint32(v[32:], origin)
	binary.NativeEndian.PutUint32(v[36:], checksum(k[:], v[:36]))
	return v
}
