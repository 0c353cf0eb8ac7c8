package nfacct

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Messages and attributes of the kernel's linux/netfilter/nfnetlink_acct.h.
const (
	msgNew    = 0 // also the answer to msgGet
	msgGet    = 1
	msgDelete = 3

	attrName    = 1
	attrPackets = 2
	attrBytes   = 3
)

// answerSeconds is how long the kernel may be silent.
const answerSeconds = 10

var errMalformed = errors.New("malformed answer")

// Conn is the packet counters of the network namespace it was opened in.
type Conn struct {
	socket    *nl.SocketHandle
	subsystem int // of nfnetlink
}

var _ Interface = (*Conn)(nil)

// Open opens a connection to the packet counters of the calling thread's network
// namespace, wherever it is used from later. It does not ask whether the kernel
// has any.
func Open() (*Conn, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, fmt.Errorf("open netfilter netlink socket: %w", ErrUnsupported)
	case err != nil:
		return nil, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: answerSeconds}); err != nil {
		s.Close()
		return nil, fmt.Errorf("prepare netfilter netlink socket: %w", err)
	}
	return &Conn{socket: &nl.SocketHandle{Socket: s}, subsystem: unix.NFNL_SUBSYS_ACCT}, nil
}

// Close releases the socket.
func (c *Conn) Close() error {
	c.socket.Close()
	return nil
}

// Ensure asks for a new counter, and is content with an old one.
func (c *Conn) Ensure(name string) error {
	// Without the flag EXCL a counter that is there would be EBUSY.
	_, err := c.ask(msgNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, name)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create counter %s: %w", name, err)
	}
	return nil
}

// Counter asks for one counter and leaves it as it is.
func (c *Conn) Counter(name string) (Count, error) {
	answer, err := c.ask(msgGet, 0, name)
	var n Count
	if err == nil {
		n, err = decode(answer)
	}
	if err != nil {
		return Count{}, fmt.Errorf("read counter %s: %w", name, err)
	}
	return n, nil
}

// Delete asks for the removal of one counter.
func (c *Conn) Delete(name string) error {
	if _, err := c.ask(msgDelete, 0, name); err != nil {
		return fmt.Errorf("delete counter %s: %w", name, err)
	}
	return nil
}

// ask sends a request about one counter and returns the body of the answer, if
// it has one.
func (c *Conn) ask(message, flags int, name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	answers, err := c.request(message, flags, name).Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case errors.Is(err, unix.EINVAL):
		// With a good name this is nfnetlink's answer for a subsystem that it
		// neither has nor can load.
		return nil, ErrUnsupported
	case errors.Is(err, unix.ENOENT):
		return nil, ErrNotFound
	case errors.Is(err, unix.EBUSY):
		return nil, ErrBusy
	case err != nil:
		return nil, err
	case len(answers) == 0:
		return nil, nil
	}
	return answers[0], nil
}

// request returns a request about one counter.
func (c *Conn) request(message, flags int, name string) *nl.NetlinkRequest {
	// The kernel marks its answer as one of several and sends no other, so its
	// end is known by the acknowledgement only.
	r := nl.NewNetlinkRequest(c.subsystem<<8|message, unix.NLM_F_ACK|flags)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: c.socket}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(attrName, nl.ZeroTerminated(name)))
	return r
}

// decode reads what was counted from the body of an answer.
func decode(body []byte) (Count, error) {
	var n Count
	var packets, bytes bool
	for kind, value := range attributes(body[min(nl.SizeofNfgenmsg, len(body)):]) {
		switch {
		case kind == attrPackets && len(value) == 8:
			n.Packets, packets = binary.BigEndian.Uint64(value), true
		case kind == attrBytes && len(value) == 8:
			n.Bytes, bytes = binary.BigEndian.Uint64(value), true
		}
	}
	if !packets || !bytes {
		return Count{}, errMalformed
	}
	return n, nil
}

// attributes yields attributes without their flags, up to the end or to what is
// malformed.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) & nl.NLA_TYPE_MASK
			if n < unix.SizeofNlAttr || n > len(b) || !yield(kind, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min((n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}
