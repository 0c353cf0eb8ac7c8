package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"sluice/internal/proxy"
)

// How sockets are kept in the maps of open ones: a set of cookies, and as many
// sockets of one pair of addresses for TCP, and of up to four and how many for UDP.
const (
	ways     = 4
	pairSize = 48
	udpPairs = 4
	udpSize  = udpPairs*pairSize + 16

	setsAtOnce = 512 // are read
)

type (
	tcpSet [ways * (8 + pairSize)]byte
	udpSet [ways * (8 + udpSize)]byte
)

// route is whose connections are counted.
type route struct {
	protocol           proxy.Protocol
	frontend, endpoint netip.AddrPort
}

// Traffic yields the connections that were translated at their socket and how many
// are open, and what the rules refused. What such connections carry nobody counts.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	open := map[route]uint64{}
	count := func(r route) { open[r]++ }
	err := errors.Join(
		eachSet(d.kernel.TCP, func(set *tcpSet) { set.open(count) }),
		eachSet(d.kernel.UDP, func(set *udpSet) { set.open(count) }),
	)
	var key routeKey
	var n uint64
	all := d.kernel.Routes.Iterate()
	for all.Next(&key, &n) {
		r := key.route()
		yield(proxy.Sample{
			Protocol: r.protocol, Frontend: r.frontend, Endpoint: r.endpoint,
			Traffic: proxy.Traffic{Connections: n, Active: open[r]},
		})
	}
	if err = errors.Join(err, all.Err()); err != nil {
		err = fmt.Errorf("read the connections of sockets: %w", err)
	}
	return errors.Join(err, d.Dataplane.Traffic(ctx, yield))
}

// route is whose connections a key is for.
func (k *routeKey) route() route {
	return route{
		proxy.Protocol(binary.NativeEndian.Uint32(k[36:])),
		addrPort(k[:], 0, 32), addrPort(k[:], 16, 34),
	}
}

func addrPort(b []byte, addr, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[addr:])).Unmap(), binary.BigEndian.Uint16(b[port:]))
}

// eachSet calls f for all sets of a map.
func eachSet[Set any](m *ebpf.Map, f func(*Set)) error {
	keys, values := make([]uint32, setsAtOnce), make([]Set, setsAtOnce)
	for cursor := new(ebpf.MapBatchCursor); ; {
		n, err := m.BatchLookup(cursor, keys, values, nil)
		for i := range n {
			f(&values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// open calls f for the sockets of a set that are open.
func (set *tcpSet) open(f func(route)) {
	for way := range ways {
		pair := set[ways*8+way*pairSize:]
		if binary.NativeEndian.Uint64(set[way*8:]) != 0 {
			openPair(proxy.TCP, pair, f)
		}
	}
}

func (set *udpSet) open(f func(route)) {
	for way := range ways {
		socket := set[ways*8+way*udpSize:]
		used := binary.NativeEndian.Uint32(socket[udpPairs*pairSize:])
		for i := range min(int(used), udpPairs) {
			if binary.NativeEndian.Uint64(set[way*8:]) != 0 {
				openPair(proxy.UDP, socket[i*pairSize:], f)
			}
		}
	}
}

// openPair calls f for a pair, a frontend and an endpoint of 20 bytes each, unless
// it is none any more.
func openPair(p proxy.Protocol, pair []byte, f func(route)) {
	if r := (route{p, addrPort(pair, 0, 16), addrPort(pair, 20, 36)}); r.frontend.Port() != 0 {
		f(r)
	}
}
