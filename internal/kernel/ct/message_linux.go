package ct

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"

	"sluice/internal/kernel/netlink"
)

// Constants of linux/netfilter/nfnetlink_conntrack.h that the netlink library lacks.
const (
	tupleZone       = 3  // CTA_TUPLE_ZONE
	attrFilter      = 25 // CTA_FILTER
	filterOrigFlags = 1
	filterSrc       = 1 << 0 // flags: which parts of the original tuple must match
	filterDst       = 1 << 1
	filterProtoNum  = 1 << 3
	filterDstPort   = 1 << 5
	statusMask      = 26     // CTA_STATUS_MASK
	statusSeenReply = 1 << 1 // IPS_SEEN_REPLY, in CTA_STATUS
	statusDstNAT    = 1 << 5 // IPS_DST_NAT
	protoInfoState  = 1      // CTA_PROTOINFO_TCP_STATE
	counterPackets  = 1      // CTA_COUNTERS_PACKETS
	counterBytes    = 2      // CTA_COUNTERS_BYTES
	tcpLastAck      = 6      // TCP_CONNTRACK_LAST_ACK; only TIME_WAIT and CLOSE follow it
)

// encodeFilter writes a filter for flows of one protocol, and of one client and destination if they
// are set. Kernels before 5.8 ignore the attribute and send every flow of the family.
func encodeFilter(w *netlink.Builder, f Filter) {
	flags := uint32(filterProtoNum)
	if f.Src.IsValid() {
		flags |= filterDstPort
		if !f.IPv6 { // Linux 6.18 omits exactly the flows that match the addresses of an IPv6 filter.
			flags |= filterSrc | filterDst
		}
		encodeTuple(w, nl.CTA_TUPLE_ORIG, f.Protocol, Tuple{netip.AddrPortFrom(f.Src, 0), f.Dst})
	} else {
		w.Nest(nl.CTA_TUPLE_ORIG, func() {
			w.Nest(nl.CTA_TUPLE_PROTO, func() { w.Raw(nl.CTA_PROTO_NUM, string([]byte{f.Protocol})) })
		})
	}
	w.Nest(attrFilter, func() {
		w.Raw(filterOrigFlags, string(binary.NativeEndian.AppendUint32(nil, flags)))
	})
}

// encodeFlow writes what the kernel needs to find a flow.
func encodeFlow(w *netlink.Builder, f *Flow) {
	encodeTuple(w, nl.CTA_TUPLE_ORIG, f.Protocol, f.Orig)
	if f.Zone != 0 {
		w.U16(nl.CTA_ZONE, f.Zone)
	}
	w.U32(nl.CTA_ID, f.ID)
}

func encodeTuple(w *netlink.Builder, kind uint16, protocol uint8, t Tuple) {
	src := uint16(nl.CTA_IP_V4_SRC)
	if t.Src.Addr().Is6() {
		src = nl.CTA_IP_V6_SRC
	}
	w.Nest(kind, func() {
		w.Nest(nl.CTA_TUPLE_IP, func() {
			w.Raw(src, string(t.Src.Addr().AsSlice()))
			w.Raw(src+1, string(t.Dst.Addr().AsSlice()))
		})
		w.Nest(nl.CTA_TUPLE_PROTO, func() {
			w.Raw(nl.CTA_PROTO_NUM, string([]byte{protocol}))
			w.U16(nl.CTA_PROTO_SRC_PORT, t.Src.Port())
			w.U16(nl.CTA_PROTO_DST_PORT, t.Dst.Port())
		})
	})
}

// decode reads a flow into f, and reports whether its tuples are complete. A table may have a
// million flows, so each attribute is visited once.
func decode(a netlink.Attrs, f *Flow) bool {
	*f = Flow{}
	var zones [2]uint16 // of the two directions; rules can set a zone for one direction only
	for kind, v := range a.All() {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			f.Orig, f.Protocol, zones[0] = decodeTuple(v)
		case nl.CTA_TUPLE_REPLY:
			f.Reply, _, zones[1] = decodeTuple(v)
		case nl.CTA_ZONE:
			f.Zone = uint16(v.Number())
		case nl.CTA_ID:
			f.ID = uint32(v.Number())
		case nl.CTA_STATUS:
			status := v.Number()
			f.Translated, f.Answered = status&statusDstNAT != 0, status&statusSeenReply != 0
		case nl.CTA_PROTOINFO:
			f.Closed = v.Number(nl.CTA_PROTOINFO_TCP, protoInfoState) >= tcpLastAck
		case nl.CTA_COUNTERS_ORIG:
			f.Carried.Known, f.Carried.Orig = true, decodeCount(v)
		case nl.CTA_COUNTERS_REPLY:
			f.Carried.Reply = decodeCount(v)
		}
	}
	f.Zone = max(f.Zone, zones[0], zones[1])
	return f.Orig.complete() && f.Reply.complete()
}

func decodeCount(a netlink.Attrs) Count {
	return Count{Packets: a.Number(counterPackets), Bytes: a.Number(counterBytes)}
}

func (t Tuple) complete() bool {
	return t.Src.IsValid() && t.Src.Addr().BitLen() == t.Dst.Addr().BitLen()
}

func decodeTuple(a netlink.Attrs) (t Tuple, protocol uint8, zone uint16) {
	var src, dst netip.Addr
	var from, to uint16
	for kind, v := range a.All() {
		switch kind {
		case nl.CTA_TUPLE_IP:
			for kind, v := range v.All() {
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					src, _ = netip.AddrFromSlice(v)
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					dst, _ = netip.AddrFromSlice(v)
				}
			}
		case nl.CTA_TUPLE_PROTO:
			for kind, v := range v.All() {
				switch kind {
				case nl.CTA_PROTO_NUM:
					protocol = uint8(v.Number())
				case nl.CTA_PROTO_SRC_PORT:
					from = uint16(v.Number())
				case nl.CTA_PROTO_DST_PORT:
					to = uint16(v.Number())
				}
			}
		case tupleZone:
			zone = uint16(v.Number())
		}
	}
	return Tuple{netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to)}, protocol, zone
}
