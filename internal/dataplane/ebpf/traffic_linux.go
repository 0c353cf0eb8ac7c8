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

// route is whose connections are counted.
type route struct {
	protocol           proxy.Protocol
	frontend, endpoint netip.AddrPort
}

// account is what is known of a route beside what the kernel counts at the moment.
type account struct {
	ended routeValue              // what had ended, at last
	kept  routeValue              // what the kernel counts no more, as the route's entry had to give way
	told  routeValue              // what all came to, at last
	fell  [len(routeValue{})]bool // far below that, at last
}

// Traffic yields the connections that were translated at their socket, how many
// are open, and what they carried without headers, and what the rules refused.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	err := d.sockets(yield)
	if err != nil {
		err = fmt.Errorf("read the connections of sockets: %w", err)
	}
	return errors.Join(err, d.Dataplane.Traffic(ctx, yield))
}

// sockets reads what has ended, and then the sockets that live: one that ends
// meanwhile may be missing until the next time, but is never counted twice.
func (d *Dataplane) sockets(yield func(proxy.Sample)) error {
	d.counting.Lock()
	defer d.counting.Unlock()
	ended := map[route]routeValue{}
	if err := each(d.kernel.Routes, func(k routeKey, v routeValue) { ended[k.route()] = v }); err != nil {
		return err
	}
	live, open := map[route]routeValue{}, map[route]uint64{}
	for m, p := range map[*ebpf.Map]*ebpf.Program{d.kernel.TCP: d.kernel.LiveTCP, d.kernel.UDP: d.kernel.LiveUDP} {
		found, err := run(p, m, len(liveSocket{}))
		if err != nil {
			return err
		}
		for _, b := range found {
			r, isOpen, n := (*liveSocket)(b).decode()
			if r.frontend.Port() == 0 {
				continue // It is about to be translated.
			}
			live[r], open[r] = live[r].plus(n), open[r]+isOpen
			ended[r] = ended[r].plus(routeValue{}) // so that it is told of
		}
	}
	accounts := make(map[route]*account, len(ended))
	for r, n := range ended {
		a := d.accounts[r]
		if a == nil {
			a = &account{}
		}
		accounts[r] = a
		yield(proxy.Sample{Protocol: r.protocol, Frontend: r.frontend, Endpoint: r.endpoint, Traffic: a.settle(n, live[r]).traffic(open[r])})
	}
	d.accounts = accounts
	return nil
}

// settle returns what a route has come to. It never shrinks: the kernel may have
// given an entry away, a socket may have ended meanwhile, and it counts packets in 32
// bits, which shows by a fall that lasts.
func (a *account) settle(ended, live routeValue) routeValue {
	const full = 1 << 32
	for i := range ended {
		if ended[i] < a.ended[i] {
			a.kept[i] += a.ended[i]
		}
		now := ended[i] + live[i] + a.kept[i]
		fell := now+full/2 < a.told[i]
		if fell && a.fell[i] {
			a.kept[i], now, fell = a.kept[i]+full, now+full, false
		}
		a.fell[i], a.told[i] = fell, max(a.told[i], now)
	}
	a.ended = ended
	return a.told
}

func (v routeValue) plus(n routeValue) routeValue {
	for i := range v {
		v[i] += n[i]
	}
	return v
}

// traffic is what the counts of a route are: connections, bytes in and out, packets
// in and out.
func (v routeValue) traffic(open uint64) proxy.Traffic {
	return proxy.Traffic{Connections: v[0], Active: open, Bytes: [...]uint64{v[1], v[2]}, Packets: [...]uint64{v[3], v[4]}}
}

// route is whose connections a key is for.
func (k *routeKey) route() route {
	return route{
		proxy.Protocol(binary.NativeEndian.Uint32(k[36:])),
		addrPort(k[:], 0, 32), addrPort(k[:], 16, 34),
	}
}

// decode returns what a program tells of a socket.
func (s *liveSocket) decode() (r route, open uint64, carried routeValue) {
	for i := range carried {
		carried[i] = binary.NativeEndian.Uint64(s[48+8*i:])
	}
	r = route{proxy.Protocol(binary.NativeEndian.Uint32(s[40:])), addrPort(s[:], 0, 16), addrPort(s[:], 20, 36)}
	return r, uint64(binary.NativeEndian.Uint32(s[44:])), carried
}

func addrPort(b []byte, addr, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[addr:])).Unmap(), binary.BigEndian.Uint16(b[port:]))
}
