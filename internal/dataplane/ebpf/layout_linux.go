package ebpf

import (
	"encoding/binary"
	"net/netip"

	"sluice/internal/proxy"
)

// Keys and values of the maps, as sockets.c has them. Their words are in the
// machine's byte order, addresses and ports in that of the network.
type (
	frontendKey  [20]byte
	serviceValue [20]byte
	slotKey      [8]byte
	endpoint     [24]byte
	memberKey    [24]byte
	memberValue  [4]byte
	addrKey      [16]byte
	spaceKey     [16]byte
	spaceValue   [40]byte
	settings     [24]byte
	routeKey     [40]byte
	routeValue   [5]uint64
	liveSocket   [88]byte
)

// What to do for an origin.
const (
	translate = 1
	localList = 2
)

// What programs are told beside until when they may act.
const (
	countBytes = 1
	cutting    = 2
)

// Flags of the node's addresses.
const (
	takesNodePorts = 1
	podRange       = 2
	isLoopback     = 4
)

// Flags of endpoints: what their address may be besides.
const (
	here           = 1
	inServiceRange = 2
)

// unknown is the origin of a namespace whose sockets are left alone.
const unknown = uint32(len(proxy.Origins))

const localBit = 1 << 31

// checkSum is what a value carries of its key and itself, for programs that read
// it while its memory becomes another's.
func checkSum(parts ...[]byte) uint32 {
	sum := uint32(1)
	for _, words := range parts {
		for ; len(words) > 0; words = words[4:] {
			sum = (sum ^ binary.NativeEndian.Uint32(words)) * 0x9e3779b1
			sum ^= sum >> 15
		}
	}
	return sum
}

func putAddr(b []byte, a netip.AddrPort) {
	ip := a.Addr().As16()
	copy(b, ip[:])
	binary.BigEndian.PutUint16(b[16:], a.Port())
}

// frontendOf is the key of a frontend.
func frontendOf(p proxy.Protocol, f proxy.Frontend) (k frontendKey) {
	if f.Kind == proxy.NodePort {
		binary.BigEndian.PutUint16(k[16:], f.Addr.Port())
		k[19] = [...]byte{proxy.IPv4: 4, proxy.IPv6: 6}[proxy.FamilyOf(f.Addr.Addr())]
	} else {
		putAddr(k[:], f.Addr)
	}
	k[18] = byte(p)
	return k
}

// serviceOf is the value of a frontend.
func serviceOf(k frontendKey, row uint32, counts [2]int, actions [len(proxy.Origins)]byte) (v serviceValue) {
	binary.NativeEndian.PutUint32(v[:], row)
	binary.NativeEndian.PutUint32(v[4:], uint32(counts[proxy.ScopeCluster]))
	binary.NativeEndian.PutUint32(v[8:], uint32(counts[proxy.ScopeLocal]))
	copy(v[12:], actions[:])
	binary.NativeEndian.PutUint32(v[16:], checkSum(k[:], v[:16]))
	return v
}

// slotOf is the key of one endpoint of a list.
func slotOf(row uint32, s proxy.Scope, i int) (k slotKey) {
	if s == proxy.ScopeLocal {
		i |= localBit
	}
	binary.NativeEndian.PutUint32(k[:], row)
	binary.NativeEndian.PutUint32(k[4:], uint32(i))
	return k
}

func endpointOf(k slotKey, e proxy.Endpoint, cidrs []netip.Prefix) (v endpoint) {
	var flags uint16
	if e.Local || e.NodeUnknown {
		flags |= here
	}
	if proxy.Contains(cidrs, e.Addr.Addr()) {
		flags |= inServiceRange
	}
	putAddr(v[:], e.Addr)
	binary.NativeEndian.PutUint16(v[18:], flags)
	binary.NativeEndian.PutUint32(v[20:], checkSum(k[:], v[:20]))
	return v
}

// memberOf is the key of an endpoint that keeps what it has.
func memberOf(row uint32, a netip.AddrPort) (k memberKey) {
	binary.NativeEndian.PutUint32(k[:], row)
	putAddr(k[4:], a)
	return k
}

func spaceOf(cookie uint64, f proxy.Family) (k spaceKey) {
	binary.NativeEndian.PutUint64(k[:], cookie)
	binary.NativeEndian.PutUint32(k[8:], [...]uint32{proxy.IPv4: 4, proxy.IPv6: 6}[f])
	return k
}

// spaceIs is what is known of a namespace until a time since boot.
func spaceIs(k spaceKey, source netip.Addr, origin uint32, until uint64) (v spaceValue) {
	copy(v[:8], k[:8])
	binary.NativeEndian.PutUint64(v[8:], until)
	ip := source.As16()
	copy(v[16:], ip[:])
	binary.NativeEndian.PutUint32(v[32:], origin)
	binary.NativeEndian.PutUint32(v[36:], checkSum(k[:], v[:36]))
	return v
}
