package ct

import (
	"encoding/binary"
	"net/netip"

	"sluice/internal/kernel/netlink"
)

// Messages and attributes of the kernel's linux/netfilter/nfnetlink_conntrack.h.
const (
	msgGet    = 1
	msgDelete = 2

	attrTupleOrig  = 1
	attrTupleReply = 2
	attrID         = 12
	attrZone       = 18
	attrFilter     = 25

	tupleIP    = 1
	tupleProto = 2
	tupleZone  = 3

	ipV4Src = 1 // the destination is the next one
	ipV6Src = 3

	protoNum     = 1
	protoSrcPort = 2
	protoDstPort = 3

	filterOrigFlags = 1
	filterProtoNum  = 1 << 3 // the flag that makes the protocol of the original tuple count
)

// encodeFilter asks for flows of one protocol only. Kernels before 5.8 do not
// know the attribute and send every flow of the family.
func encodeFilter(w *netlink.Builder, protocol uint8) {
	w.Nest(attrTupleOrig, func() {
		w.Nest(tupleProto, func() { w.Raw(protoNum, string([]byte{protocol})) })
	})
	w.Nest(attrFilter, func() {
		w.Raw(filterOrigFlags, string(binary.NativeEndian.AppendUint32(nil, filterProtoNum)))
	})
}

// encodeFlow names a flow by what the kernel finds it by.
func encodeFlow(w *netlink.Builder, f *Flow) {
	encodeTuple(w, attrTupleOrig, f.Protocol, f.Orig)
	if f.Zone != 0 {
		w.U16(attrZone, f.Zone)
	}
	w.U32(attrID, f.ID)
}

func encodeTuple(w *netlink.Builder, kind uint16, protocol uint8, t Tuple) {
	src := uint16(ipV4Src)
	if t.Src.Addr().Is6() {
		src = ipV6Src
	}
	w.Nest(kind, func() {
		w.Nest(tupleIP, func() {
			w.Raw(src, string(t.Src.Addr().AsSlice()))
			w.Raw(src+1, string(t.Dst.Addr().AsSlice()))
		})
		w.Nest(tupleProto, func() {
			w.Raw(protoNum, string([]byte{protocol}))
			w.U16(protoSrcPort, t.Src.Port())
			w.U16(protoDstPort, t.Dst.Port())
		})
	})
}

// decode reads a flow, and reports whether it is whole.
func decode(b []byte, f *Flow) bool {
	*f = Flow{}
	var zone, orig, reply uint16 // the last two if its directions are in different zones
	for kind, v := range netlink.Attributes(b) {
		switch kind {
		case attrTupleOrig:
			f.Orig, f.Protocol, orig = decodeTuple(v)
		case attrTupleReply:
			f.Reply, _, reply = decodeTuple(v)
		case attrID:
			f.ID = netlink.Number[uint32](v)
		case attrZone:
			zone = netlink.Number[uint16](v)
		}
	}
	f.Zone = max(zone, orig, reply)
	return f.Orig.whole() && f.Reply.whole()
}

func (t Tuple) whole() bool {
	return t.Src.IsValid() && t.Src.Addr().BitLen() == t.Dst.Addr().BitLen()
}

func decodeTuple(b []byte) (t Tuple, protocol uint8, zone uint16) {
	var addrs [2]netip.Addr
	var ports [2]uint16
	for kind, v := range netlink.Attributes(b) {
		switch kind {
		case tupleIP:
			for kind, v := range netlink.Attributes(v) {
				if kind >= ipV4Src && kind <= ipV6Src+1 {
					addrs[(kind-ipV4Src)%2], _ = netip.AddrFromSlice(v)
				}
			}
		case tupleProto:
			for kind, v := range netlink.Attributes(v) {
				switch {
				case kind == protoNum && len(v) == 1:
					protocol = v[0]
				case kind == protoSrcPort || kind == protoDstPort:
					ports[kind-protoSrcPort] = netlink.Number[uint16](v)
				}
			}
		case tupleZone:
			zone = netlink.Number[uint16](v)
		}
	}
	return Tuple{netip.AddrPortFrom(addrs[0], ports[0]), netip.AddrPortFrom(addrs[1], ports[1])}, protocol, zone
}
