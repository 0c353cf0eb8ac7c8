package ct

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"

	"sluice/internal/kernel/netlink"
)

// What the kernel's linux/netfilter/nfnetlink_conntrack.h has and the library has not.
const (
	tupleZone       = 3  // CTA_TUPLE_ZONE
	attrFilter      = 25 // CTA_FILTER
	filterOrigFlags = 1
	filterProtoNum  = 1 << 3 // the flag that makes the protocol of the original tuple count
)

// encodeFilter asks for flows of one protocol only. Kernels before 5.8 do not
// know the attribute and send every flow of the family.
func encodeFilter(w *netlink.Builder, protocol uint8) {
	w.Nest(nl.CTA_TUPLE_ORIG, func() {
		w.Nest(nl.CTA_TUPLE_PROTO, func() { w.Raw(nl.CTA_PROTO_NUM, string([]byte{protocol})) })
	})
	w.Nest(attrFilter, func() {
		w.Raw(filterOrigFlags, string(binary.NativeEndian.AppendUint32(nil, filterProtoNum)))
	})
}

// encodeFlow names a flow by what the kernel finds it by.
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

// decode reads a flow, and reports whether it is whole.
func decode(a netlink.Attrs, f *Flow) bool {
	orig, reply := a.Get(nl.CTA_TUPLE_ORIG), a.Get(nl.CTA_TUPLE_REPLY)
	*f = Flow{
		Protocol: uint8(orig.Number(nl.CTA_TUPLE_PROTO, nl.CTA_PROTO_NUM)),
		Orig:     decodeTuple(orig),
		Reply:    decodeTuple(reply),
		// A tuple has one if the directions are in different zones.
		Zone: uint16(max(a.Number(nl.CTA_ZONE), orig.Number(tupleZone), reply.Number(tupleZone))),
		ID:   uint32(a.Number(nl.CTA_ID)),
	}
	return f.Orig.whole() && f.Reply.whole()
}

func (t Tuple) whole() bool {
	return t.Src.IsValid() && t.Src.Addr().BitLen() == t.Dst.Addr().BitLen()
}

func decodeTuple(a netlink.Attrs) Tuple {
	ip, ports := a.Get(nl.CTA_TUPLE_IP), a.Get(nl.CTA_TUPLE_PROTO)
	end := func(v4, v6, port uint16) netip.AddrPort {
		addr, ok := netip.AddrFromSlice(ip.Get(v4))
		if !ok {
			addr, _ = netip.AddrFromSlice(ip.Get(v6))
		}
		return netip.AddrPortFrom(addr, uint16(ports.Number(port)))
	}
	return Tuple{
		Src: end(nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT),
		Dst: end(nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT),
	}
}
