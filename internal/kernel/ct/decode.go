package ct

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"
)

var errMalformed = errors.New("malformed message")

// received is one netlink message.
type received struct {
	kind  uint16
	flags uint16
	seq   uint32
	body  []byte
}

// messages cuts a datagram into messages; what is left over is no message.
func messages(b []byte) iter.Seq[received] {
	return func(yield func(received) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return
			}
			m := received{
				kind:  binary.NativeEndian.Uint16(b[4:]),
				flags: binary.NativeEndian.Uint16(b[6:]),
				seq:   binary.NativeEndian.Uint32(b[8:]),
				body:  b[unix.SizeofNlMsghdr:size],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

func align(n int) int { return (n + 3) &^ 3 }

// attributes calls yield with the kind and value of each attribute, and reports
// whether they are well formed.
func attributes(b []byte, yield func(kind uint16, value []byte) bool) bool {
	for len(b) >= attrBytes {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrBytes || size > len(b) {
			return false
		}
		kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if !yield(kind, b[attrBytes:size]) {
			return false
		}
		b = b[min(align(size), len(b)):]
	}
	return true
}

// decode reads a flow from the body of a message.
func decode(body []byte, f *Flow) error {
	*f = Flow{}
	if len(body) < 4 {
		return errMalformed
	}
	var orig, reply tuple
	ok := attributes(body[4:], func(kind uint16, v []byte) bool {
		switch kind {
		case attrTupleOrig:
			return orig.decode(v)
		case attrTupleReply:
			return reply.decode(v)
		case attrID:
			return len(v) == 4 && set(&f.ID, binary.BigEndian.Uint32(v))
		case attrZone:
			return len(v) == 2 && set(&f.Zone, binary.BigEndian.Uint16(v))
		default:
			return true
		}
	})
	if !ok || !orig.complete() || !reply.complete() {
		return errMalformed
	}
	f.Protocol = orig.protocol
	f.Zone = max(f.Zone, orig.zone, reply.zone)
	f.Orig, f.Reply = orig.tuple(), reply.tuple()
	return nil
}

func set[T any](to *T, v T) bool {
	*to = v
	return true
}

// tuple is a tuple in parts.
type tuple struct {
	src, dst         netip.Addr
	protocol         uint8
	srcPort, dstPort uint16
	zone             uint16 // of a flow whose two directions are in different zones
}

func (t *tuple) complete() bool { return t.src.IsValid() && t.src.BitLen() == t.dst.BitLen() }

func (t *tuple) tuple() Tuple {
	return Tuple{Src: netip.AddrPortFrom(t.src, t.srcPort), Dst: netip.AddrPortFrom(t.dst, t.dstPort)}
}

func (t *tuple) decode(b []byte) bool {
	return attributes(b, func(kind uint16, v []byte) bool {
		switch kind {
		case tupleIP:
			return attributes(v, t.address)
		case tupleProto:
			return attributes(v, t.transport)
		case tupleZone:
			return len(v) == 2 && set(&t.zone, binary.BigEndian.Uint16(v))
		default:
			return true
		}
	})
}

func (t *tuple) address(kind uint16, v []byte) bool {
	a, ok := netip.AddrFromSlice(v)
	switch kind {
	case ipV4Src, ipV6Src:
		t.src = a
	case ipV4Dst, ipV6Dst:
		t.dst = a
	default:
		return true
	}
	return ok && a.Is4() == (kind <= ipV4Dst)
}

func (t *tuple) transport(kind uint16, v []byte) bool {
	switch kind {
	case protoNum:
		return len(v) == 1 && set(&t.protocol, v[0])
	case protoSrcPort:
		return len(v) == 2 && set(&t.srcPort, binary.BigEndian.Uint16(v))
	case protoDstPort:
		return len(v) == 2 && set(&t.dstPort, binary.BigEndian.Uint16(v))
	default:
		return true
	}
}
