package traffic

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice/internal/config"
	"sluice/internal/conformance/lab"
	probe "sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// modes are those whose traffic connection tracking counts, ipvs, which few kernels have, and ebpf.
// The counts of mode userspace are tested with its sockets.
var modes = []config.ProxyMode{config.NFTables, config.IPTables, config.IPVS, config.EBPF}

// wantRow waits for the counts of a row: what connections carried, not counting headers.
func (n *testNode) wantRow(key proxy.PortKey, connections, active, in, out uint64) {
	n.Helper()
	n.eventually(func() string {
		got, endpoints, _ := n.count.of(key)
		text := fmt.Sprintf("%v: %+v; want %d connections, %d open, %d bytes in and %d out", key, got, connections, active, in, out)
		var one Counts
		for _, e := range endpoints {
			one = e
		}
		switch {
		case got.Connections != connections, got.Active != active, !n.carries(got, proxy.In, in), !n.carries(got, proxy.Out, out):
			return text
		case connections > 0 && (len(endpoints) != 1 || one.Traffic != got.Traffic):
			return fmt.Sprintf("endpoints %+v are not the row's %+v", endpoints, got)
		default:
			return ""
		}
	})
}

// headers are the minimum and maximum size of the headers of a packet.
const minHeaders, maxHeaders = 28, 100

// carries reports whether bytes agree, with the headers of as many packets. Sockets count without
// headers. On a busy machine TCP sends some bytes twice, which all but sockets count twice.
func (n *testNode) carries(got Counts, d proxy.Direction, want uint64) bool {
	bytes, packets := got.Bytes[d], got.Packets[d]
	minHeaders := uint64(minHeaders)
	if n.mode.Name == config.EBPF {
		minHeaders = 0
	}
	return got.Carried && bytes >= want+minHeaders*packets && bytes <= want+want/10+maxHeaders*packets && (want == 0 || packets > 0)
}

// TestLabBytes sends bytes through every kind of frontend, in both families, and compares the
// counts while connections are open, when they are closed, and when the kernel has forgotten them.
func TestLabBytes(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t, mode)
			four, six := key("web", proxy.TCP, proxy.IPv4), key("web", proxy.TCP, proxy.IPv6)
			ways := []struct {
				from *lab.Host
				src  netip.Addr
				dst  netip.AddrPort
			}{
				{n.client, clientIP, vipAt},
				{n.Node(), netip.Addr{}, vipAt},
				{n.Outside(), outsideIP, nodePort},
				{n.Outside(), outsideIP, balancer},
			}
			for i, w := range ways {
				done := uint64(i)
				c := n.exchange(w.from, w.src, w.dst)
				n.wantRow(four, done+1, 1, (done+1)*bytesThere, done*bytesBack)
				n.finish(c)
				n.wantRow(four, done+1, 0, (done+1)*bytesThere, (done+1)*bytesBack)
			}
			all := uint64(len(ways))
			n.finish(n.exchange(n.client, clientIP6, vipAt6))
			n.wantRow(six, 1, 0, bytesThere, bytesBack)
			n.forget()
			n.wantRow(four, all, 0, all*bytesThere, all*bytesBack)
			n.wantRow(six, 1, 0, bytesThere, bytesBack)
			n.finish(n.exchange(n.client, clientIP, vipAt))
			n.wantRow(four, all+1, 0, (all+1)*bytesThere, (all+1)*bytesBack)
		})
	}
}

// TestLabDatagrams counts UDP datagrams.
func TestLabDatagrams(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t, mode)
			c, err := n.client.Dial(t.Context(), proxy.UDP, clientIP, vipAt)
			n.check(err)
			defer c.Close()
			n.check(c.SetDeadline(time.Now().Add(patience)))
			back := uint64(0)
			const times, size = 50, 1000
			for range times {
				_, err := c.Write(make([]byte, size))
				n.check(err)
				b := make([]byte, 2000)
				got, err := c.Read(b)
				n.check(err)
				back += uint64(got)
			}
			n.wantRow(key("dns", proxy.UDP, proxy.IPv4), 1, 1, times*size, back)
			got, _, _ := n.count.of(key("dns", proxy.UDP, proxy.IPv4))
			if got.Packets != [2]uint64{times, times} {
				t.Errorf("%v packets; want %d each way", got.Packets, times)
			}
		})
	}
}

// TestLabManyConnections opens and closes connections while counts are read.
func TestLabManyConnections(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t, mode)
			const times = 100
			var last uint64
			for i := range times {
				c := n.exchange(n.client, clientIP, vipAt)
				n.finish(c)
				if i%30 == 0 {
					n.forget()
				}
				if i%10 != 0 {
					continue
				}
				n.refresh()
				got, _, _ := n.count.of(key("web", proxy.TCP, proxy.IPv4))
				if got.Connections < last || got.Connections > uint64(i+1) {
					t.Fatalf("%d connections, %d before, after %d", got.Connections, last, i+1)
				}
				last = got.Connections
			}
			n.wantRow(key("web", proxy.TCP, proxy.IPv4), times, 0, times*bytesThere, times*bytesBack)
		})
	}
}

// TestLabRestart starts to count while a connection is open: what it carried before is not counted,
// what it carries afterwards is.
func TestLabRestart(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t, mode)
			row := key("web", proxy.TCP, proxy.IPv4)
			c := n.exchange(n.client, clientIP, vipAt)
			n.wantRow(row, 1, 1, bytesThere, 0)
			n.collect()
			known := uint64(1)
			if mode == config.IPVS || mode == config.EBPF {
				known = 0 // where connections are counted when they begin
			}
			n.wantRow(row, known, 1, 0, 0)
			_, err := c.Write(make([]byte, bytesThere))
			n.check(err)
			n.finish(c)
			n.wantRow(row, known, 0, bytesThere, bytesBack)
		})
	}
}

// TestLabRefused sends packets that are refused, for each reason.
func TestLabRefused(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t, mode)
			for _, tt := range []struct {
				row  string
				why  proxy.Reason
				from *lab.Host
				src  netip.Addr
				dst  netip.AddrPort
			}{
				{"empty", proxy.NoEndpoints, n.client, clientIP, emptyAt},
				{"far", proxy.NoLocalEndpoint, n.Outside(), outsideIP, farAt},
				{"web", proxy.SourceRange, n.Outside(), strangeIP, balancer},
			} {
				const times = 3
				flow := probe.Flow{Protocol: proxy.TCP, Src: tt.src, Dst: tt.dst, Patience: 300 * time.Millisecond}
				seen, err := tt.from.Probe(t.Context(), slices.Repeat([]probe.Flow{flow}, times))
				n.check(err)
				for _, s := range seen {
					if s.Fate == probe.Answered {
						t.Fatalf("%v was answered: %v", tt.dst, s)
					}
				}
				n.eventually(func() string {
					got, _, _ := n.count.of(key(tt.row, proxy.TCP, proxy.IPv4))
					if got.Connections != 0 || len(got.Refused) != 1 || got.Refused[tt.why] < times || got.Refused[tt.why] > 3*times {
						return fmt.Sprintf("%s: %+v; want %d packets refused for %v", tt.row, got, times, tt.why)
					}
					return ""
				})
			}
		})
	}
}

// TestLabFailures connects to an endpoint where nobody listens, beside a connection that
// is served. Both modes have all their connections in connection tracking.
func TestLabFailures(t *testing.T) {
	for _, mode := range []config.ProxyMode{config.NFTables, config.IPTables} {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t, mode)
			n.finish(n.exchange(n.client, clientIP, vipAt))
			const times = 3
			for range times {
				if _, err := n.client.Dial(t.Context(), proxy.TCP, clientIP, rawAt); err == nil {
					t.Fatal("somebody listens")
				}
			}
			n.eventually(func() string {
				served, _, _ := n.count.of(key("web", proxy.TCP, proxy.IPv4))
				got, endpoints, _ := n.count.of(key("raw", proxy.TCP, proxy.IPv4))
				if got.Failed != times || got.Active != 0 || endpoints[rawPodAt].Failed != times || served.Failed != 0 {
					return fmt.Sprintf("%+v, endpoints %+v, of the other %+v; want %d failures", got, endpoints, served, times)
				}
				return ""
			})
		})
	}
}
