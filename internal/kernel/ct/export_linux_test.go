package ct

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Translate creates a flow in the kernel whose destination is translated to f.Reply.Src, as a rule
// would.
func (c *Conn) Translate(f *Flow) error {
	const (
		natDst, natProto, portMin = 13, 3, 1 // CTA_NAT_DST, CTA_NAT_PROTO, CTA_PROTONAT_PORT_MIN
		create                    = unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_ACK
	)
	minIP := uint16(1) // CTA_NAT_V4_MINIP, which the greatest follows
	if f.Orig.Dst.Addr().Is6() {
		minIP = 4
	}
	c.request(nl.IPCTNL_MSG_CT_NEW, create, f.Orig.Dst.Addr().Is6())
	w := &c.nl.Builder
	encodeTuple(w, nl.CTA_TUPLE_ORIG, f.Protocol, f.Orig)
	encodeTuple(w, nl.CTA_TUPLE_REPLY, f.Protocol, Tuple{Src: f.Orig.Dst, Dst: f.Orig.Src})
	w.U32(nl.CTA_TIMEOUT, 600)
	w.Nest(natDst, func() {
		w.Raw(minIP, string(f.Reply.Src.Addr().AsSlice()))
		w.Raw(minIP+1, string(f.Reply.Src.Addr().AsSlice()))
		w.Nest(natProto, func() { w.U16(portMin, f.Reply.Src.Port()); w.U16(portMin+1, f.Reply.Src.Port()) })
	})
	return c.nl.Ask(func(netlink.Message) {})
}

// Plain reports whether the kernel refused to filter by protocol.
func (c *Conn) Plain() bool { return c.plain }

// SetPlain makes the connection behave as if the kernel had refused to filter.
func (c *Conn) SetPlain() { c.plain = true }

// Parsed returns how many messages of dumps were decoded.
func (c *Conn) Parsed() int { return c.parsed }
