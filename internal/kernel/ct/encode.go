package ct

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Messages and attributes of the kernel's linux/netfilter/nfnetlink_conntrack.h.
const (
	msgNew    = 0 // what a dump consists of
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

	ipV4Src = 1
	ipV4Dst = 2
	ipV6Src = 3
	ipV6Dst = 4

	protoNum     = 1
	protoSrcPort = 2
	protoDstPort = 3

	filterOrigFlags = 1
	filterProtoNum  = 1 << 3 // the flag that makes the protocol of the original tuple count
)

const (
	headerBytes = unix.SizeofNlMsghdr + 4 // with struct nfgenmsg
	attrBytes   = unix.SizeofNlAttr
)

// message is one netlink request under construction.
type message struct {
	buf []byte
}

// newMessage begins a request to connection tracking.
func newMessage(kind uint8, flags uint16, seq uint32, ipv6 bool) *message {
	m := &message{buf: make([]byte, headerBytes, 256)}
	binary.NativeEndian.PutUint16(m.buf[4:], unix.NFNL_SUBSYS_CTNETLINK<<8|uint16(kind))
	binary.NativeEndian.PutUint16(m.buf[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(m.buf[8:], seq)
	m.buf[unix.SizeofNlMsghdr] = unix.AF_INET
	if ipv6 {
		m.buf[unix.SizeofNlMsghdr] = unix.AF_INET6
	}
	return m
}

// bytes ends the request.
func (m *message) bytes() []byte {
	binary.NativeEndian.PutUint32(m.buf, uint32(len(m.buf)))
	return m.buf
}

// attr appends an attribute, padded.
func (m *message) attr(kind uint16, value []byte) {
	m.buf = binary.NativeEndian.AppendUint16(m.buf, uint16(attrBytes+len(value)))
	m.buf = binary.NativeEndian.AppendUint16(m.buf, kind)
	m.buf = append(m.buf, value...)
	for len(m.buf)%4 != 0 {
		m.buf = append(m.buf, 0)
	}
}

// nest appends an attribute that consists of what fill appends.
func (m *message) nest(kind uint16, fill func()) {
	at := len(m.buf)
	m.attr(kind|unix.NLA_F_NESTED, nil)
	fill()
	binary.NativeEndian.PutUint16(m.buf[at:], uint16(len(m.buf)-at))
}

func (m *message) uint16(kind uint16, v uint16) { m.attr(kind, binary.BigEndian.AppendUint16(nil, v)) }

// protocol asks for flows of one protocol only. Kernels before 5.8 do not know
// the attribute and send every flow of the family.
func (m *message) protocol(p uint8) {
	m.nest(attrTupleOrig, func() {
		m.nest(tupleProto, func() { m.attr(protoNum, []byte{p}) })
	})
	m.nest(attrFilter, func() {
		m.attr(filterOrigFlags, binary.NativeEndian.AppendUint32(nil, filterProtoNum))
	})
}

// flow names a flow by what the kernel finds it by.
func (m *message) flow(f *Flow) {
	m.tuple(attrTupleOrig, f.Protocol, f.Orig)
	if f.Zone != 0 {
		m.uint16(attrZone, f.Zone)
	}
	m.attr(attrID, binary.BigEndian.AppendUint32(nil, f.ID))
}

func (m *message) tuple(kind uint16, protocol uint8, t Tuple) {
	m.nest(kind, func() {
		m.nest(tupleIP, func() {
			m.addr(ipV4Src, ipV6Src, t.Src.Addr())
			m.addr(ipV4Dst, ipV6Dst, t.Dst.Addr())
		})
		m.nest(tupleProto, func() {
			m.attr(protoNum, []byte{protocol})
			m.uint16(protoSrcPort, t.Src.Port())
			m.uint16(protoDstPort, t.Dst.Port())
		})
	})
}

func (m *message) addr(v4, v6 uint16, a netip.Addr) {
	kind := v4
	if a.Is6() {
		kind = v6
	}
	m.attr(kind, a.AsSlice())
}
