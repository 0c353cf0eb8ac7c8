package netlink

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"syscall"

	"golang.org/x/sys/unix"
)

// Netfilter returns the header of messages of netfilter's subsystems (struct nfgenmsg).
func Netfilter(f Family, resource uint16) [4]byte {
	return [4]byte{byte(f), 0, byte(resource >> 8), byte(resource)}
}

// Builder writes messages into a buffer that is reused.
type Builder struct {
	Err error // the first error; Send returns it and sends nothing

	buf []byte
	seq uint32
	msg int // where the last message begins
}

// Reset discards all messages and the error.
func (b *Builder) Reset() { b.buf, b.msg, b.Err = b.buf[:0], 0, nil }

// Begin begins a message with a protocol header, and returns its sequence number.
func (b *Builder) Begin(kind, flags uint16, header [4]byte) uint32 {
	b.end()
	b.seq++
	b.msg = len(b.buf)
	b.buf = append(b.buf, 0, 0, 0, 0) // the length, see end
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, flags|unix.NLM_F_REQUEST)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, b.seq)
	b.buf = append(b.buf, 0, 0, 0, 0) // the port, which the kernel knows
	b.buf = append(b.buf, header[:]...)
	return b.seq
}

// Header writes the rest of a protocol header that has more than 4 bytes.
func (b *Builder) Header(rest []byte) { b.buf = append(b.buf, rest...) }

// end sets the length of the last message.
func (b *Builder) end() {
	if len(b.buf) > 0 {
		binary.NativeEndian.PutUint32(b.buf[b.msg:], uint32(len(b.buf)-b.msg))
	}
}

// Bytes ends the last message and returns all messages. They are valid until the next
// Reset.
func (b *Builder) Bytes() []byte {
	b.end()
	return b.buf
}

// Nest writes an attribute that contains the attributes that fill writes.
func (b *Builder) Nest(kind uint16, fill func()) {
	at := len(b.buf)
	b.buf = appendHeader(b.buf, kind|unix.NLA_F_NESTED, 0)
	fill()
	n := len(b.buf) - at
	if n > 0xffff {
		b.Err = cmp.Or(b.Err, fmt.Errorf("netlink attribute of %d bytes is too long, the limit is 65535", n))
	}
	binary.NativeEndian.PutUint16(b.buf[at:], uint16(n))
}

// Raw writes an attribute whose value is the concatenation of parts. It writes nothing if
// that is empty.
func (b *Builder) Raw(kind uint16, parts ...string) {
	n := unix.SizeofNlAttr
	for _, p := range parts {
		n += len(p)
	}
	if n == unix.SizeofNlAttr {
		return
	}
	buf := appendHeader(b.buf, kind, n)
	for _, p := range parts {
		buf = append(buf, p...)
	}
	b.buf = append(buf, "\x00\x00\x00"[:-n&3]...)
}

func appendHeader(buf []byte, kind uint16, n int) []byte {
	return binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(buf, uint16(n)), kind)
}

// Text writes an attribute that is a zero-terminated string.
func (b *Builder) Text(kind uint16, v string) { b.Raw(kind, v, "\x00") }

// U16 writes an attribute that is a number in network byte order.
func (b *Builder) U16(kind, v uint16) { b.Raw(kind, string([]byte{byte(v >> 8), byte(v)})) }

// U32 writes an attribute that is a number in network byte order.
func (b *Builder) U32(kind uint16, v uint32) {
	b.Raw(kind, string([]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}))
}

// Message is a message from the kernel.
type Message struct {
	Kind, Flags uint16
	Seq, Port   uint32
	Body        []byte
}

// Attrs returns the attributes, which follow a protocol header of 4 bytes.
func (m Message) Attrs() Attrs { return m.Body[min(len(m.Body), 4):] }

// Err returns the error that the last message of an answer carries, or nil.
func (m Message) Err() error {
	if len(m.Body) >= 4 {
		if code := int32(binary.NativeEndian.Uint32(m.Body)); code < 0 {
			return syscall.Errno(-code)
		}
	}
	return nil
}

// Messages iterates over the messages of a datagram. It stops at a malformed message.
func Messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.SizeofNlMsghdr || n > len(b) {
				return
			}
			m := Message{
				Kind:  binary.NativeEndian.Uint16(b[4:]),
				Flags: binary.NativeEndian.Uint16(b[6:]),
				Seq:   binary.NativeEndian.Uint32(b[8:]),
				Port:  binary.NativeEndian.Uint32(b[12:]),
				Body:  b[unix.SizeofNlMsghdr:n],
			}
			if !yield(m) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// Attrs is a sequence of attributes, of a message or nested in an attribute, or the value
// of an attribute.
type Attrs []byte

// All iterates over the kinds, without flags, and values of the attributes. It stops at a
// malformed attribute.
func (a Attrs) All() iter.Seq2[uint16, Attrs] {
	return func(yield func(uint16, Attrs) bool) {
		for b := a; len(b) >= unix.SizeofNlAttr; {
			n := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if n < unix.SizeofNlAttr || n > len(b) || !yield(kind, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// Get returns the value of the first attribute of the first kind, of the first attribute
// of the second kind nested in it, and so on; nil if there is none.
func (a Attrs) Get(kinds ...uint16) Attrs {
	for _, kind := range kinds {
		var found Attrs
		for k, v := range a.All() {
			if k == kind {
				found = v
				break
			}
		}
		a = found
	}
	return a
}

// Number returns what Get finds as a number in network byte order, or 0.
func (a Attrs) Number(kinds ...uint16) (n uint64) {
	for _, c := range a.Get(kinds...) {
		n = n<<8 | uint64(c)
	}
	return n
}

// Text returns what Get finds as a zero-terminated string, or "".
func (a Attrs) Text(kinds ...uint16) string {
	return string(bytes.TrimSuffix(a.Get(kinds...), []byte{0}))
}
