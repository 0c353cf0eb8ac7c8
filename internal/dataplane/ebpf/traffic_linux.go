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

// trafficKey is what connections are counted by.
type trafficKey struct {
	protocol           proxy.Protocol
	frontend, endpoint netip.AddrPort
}

// trafficTotal turns what the kernel reports for a key, which may shrink, into totals that
// do not.
type trafficTotal struct {
	ended    trafficCounts              // of sockets that have ended, at the last read
	evicted  trafficCounts              // what the kernel no longer has, since it evicted the entry
	reported trafficCounts              // the total at the last read
	fell     [len(trafficCounts{})]bool // the last read was far below the total
}

// Traffic yields the connections that were translated at their socket, how many of them
// are open, and what they carried without headers; and the packets that the rules refused.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	err := d.socketTraffic(yield)
	if err != nil {
		err = fmt.Errorf("read the connections of sockets: %w", err)
	}
	return errors.Join(err, d.Dataplane.Traffic(ctx, yield))
}

// socketTraffic reads the counts of sockets that have ended, and then those that are live.
// In this order a socket that ends in between may be missing until the next time, but is
// never counted twice.
func (d *Dataplane) socketTraffic(yield func(proxy.Sample)) error {
	d.trafficMu.Lock()
	defer d.trafficMu.Unlock()
	if _, err := runIterator(d.kernel.Flush, d.kernel.Recent, 1); err != nil {
		return err
	}
	ended := map[trafficKey]trafficCounts{}
	if err := forEach(d.kernel.Connections, func(k connectionsKey, v trafficCounts) { ended[k.decode()] = v }); err != nil {
		return err
	}
	live, open := map[trafficKey]trafficCounts{}, map[trafficKey]uint64{}
	for m, p := range map[*ebpf.Map]*ebpf.Program{d.kernel.TCP: d.kernel.LiveTCP, d.kernel.UDP: d.kernel.LiveUDP} {
		found, err := runIterator(p, m, len(liveSocket{}))
		if err != nil {
			return err
		}
		for _, b := range found {
			k, isOpen, n := (*liveSocket)(b).decode()
			if k.frontend.Port() == 0 {
				continue // Its place is taken, but not filled in yet.
			}
			live[k], open[k] = live[k].plus(n), open[k]+isOpen
			if _, ok := ended[k]; !ok {
				ended[k] = trafficCounts{}
			}
		}
	}
	totals := make(map[trafficKey]*trafficTotal, len(ended))
	for k, n := range ended {
		t := d.totals[k]
		if t == nil {
			t = &trafficTotal{}
		}
		totals[k] = t
		yield(proxy.Sample{Protocol: k.protocol, Frontend: k.frontend, Endpoint: k.endpoint, Traffic: t.update(n, live[k]).traffic(open[k])})
	}
	d.totals = totals
	return nil
}

// update returns the totals after a read. They never shrink, although what was read may:
// the kernel may have evicted the entry of ended sockets, a socket may have ended between
// the two reads, and the kernel counts packets of a TCP socket with 32 bits. Only an
// overflow makes a count fall by more than half of that and stay there for two reads.
func (t *trafficTotal) update(ended, live trafficCounts) trafficCounts {
	const overflow = 1 << 32
	for i := range ended {
		if ended[i] < t.ended[i] {
			t.evicted[i] += t.ended[i]
		}
		now := ended[i] + live[i] + t.evicted[i]
		fell := now+overflow/2 < t.reported[i]
		if fell && t.fell[i] {
			t.evicted[i], now, fell = t.evicted[i]+overflow, now+overflow, false
		}
		t.fell[i], t.reported[i] = fell, max(t.reported[i], now)
	}
	t.ended = ended
	return t.reported
}

func (c trafficCounts) plus(n trafficCounts) trafficCounts {
	for i := range c {
		c[i] += n[i]
	}
	return c
}

// traffic converts counts, which are in the order of struct traffic_counts: connections,
// bytes in both directions, packets in both directions.
func (c trafficCounts) traffic(open uint64) proxy.Traffic {
	return proxy.Traffic{Connections: c[0], Active: open, Bytes: [...]uint64{c[1], c[2]}, Packets: [...]uint64{c[3], c[4]}}
}

func (k *connectionsKey) decode() trafficKey {
	return trafficKey{
		proxy.Protocol(binary.NativeEndian.Uint32(k[36:])),
		addrPort(k[:], 0, 32), addrPort(k[:], 16, 34),
	}
}

// decode returns the contents of a record of live_tcp or live_udp. Open is 1 or 0.
func (s *liveSocket) decode() (k trafficKey, open uint64, n trafficCounts) {
	for i := range n {
		n[i] = binary.NativeEndian.Uint64(s[48+8*i:])
	}
	k = trafficKey{proxy.Protocol(binary.NativeEndian.Uint32(s[40:])), addrPort(s[:], 0, 16), addrPort(s[:], 20, 36)}
	return k, uint64(binary.NativeEndian.Uint32(s[44:])), n
}
