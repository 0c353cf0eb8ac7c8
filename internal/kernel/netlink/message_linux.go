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

// Netfilter is the header of a message of netfilter's subsystems.
func Netfilter(f Family, resource uint16) [4]byte {
	return [4]byte{byte(f), 0, byte(resource >> 8), byte(resource)}
}

// Builder writes messages into one buffer that is used again.
type Builder struct {
	Err error // the first one, for which nothing is sent

	buf []byte
	seq uint32
	msg int // where the last message begins
}

func (b *Builder) Reset() { b.buf, b.msg, b.Err = b.buf[:0], 0, nil }

// Begin starts a message, with the header of its protocol, and returns its
// sequence number.
func (b *Builder) Begin(kind, flags uint16, header [4]byte) uint32 {
	b.end()
	b.seq++
	b.msg = len(b.buf)
	b.buf = append(b.buf, 0, 0, 0, 0) // its length
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, flags|unix.NLM_F_REQUEST)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, b.seq)
	b.buf = append(b.buf, 0, 0, 0, 0) // the kernel knows our port
	b.buf = append(b.buf, header[:]...)
	return b.seq
}

// Header writes the rest of a protocol's header that is longer than others.
func (b *Builder) Header(rest []byte) { b.buf = append(b.buf, rest...) }

func (b *Builder) end() {
	if len(b.buf) > 0 {
		binary.NativeEndian.PutUint32(b.buf[b.msg:], uint32(len(b.buf)-b.msg))
	}
}

// Bytes ends the last message and returns all.
func (b *Builder) Bytes() []byte {
	b.end()
	return b.buf
}

// Nest writes an attribute that holds those that fill writes.
func (b *Builder) Nest(kind uint16, fill func()) {
	at := len(b.buf)
	b.buf = appendHeader(b.buf, kind|unix.NLA_F_NESTED, 0)
	fill()
	n := len(b.buf) - at
	if n > 0xffff {
		b.Err = cmp.Or(b.Err, fmt.Errorf("attribute of %d bytes is longer than netlink allows", n))
	}
	binary.NativeEndian.PutUint16(b.buf[at:], uint16(n))
}

// Raw writes an attribute of bytes, one part after the other; none without bytes.
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

// Text writes a zero-terminated string.
func (b *Builder) Text(kind uint16, v string) { b.Raw(kind, v, "\x00") }

// U16 writes a number in network order, as does U32.
func (b *Builder) U16(kind, v uint16) { b.Raw(kind, string([]byte{byte(v >> 8), byte(v)})) }

func (b *Builder) U32(kind uint16, v uint32) {
	b.Raw(kind, string([]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}))
}

// Message is one message from the kernel.
type Message struct {
	Kind, Flags uint16
	Seq, Port   uint32
	Body        []byte
}

// Attrs returns what follows the header of the message's protocol.
func (m Message) Attrs() Attrs { return m.Body[min(len(m.Body), 4):] }

// Err returns the error in the last message of an answer.
func (m Message) Err() error {
	if len(m.Body) >= 4 {
		if code := int32(binary.NativeEndian.Uint32(m.Body)); code < 0 {
			return syscall.Errno(-code)
		}
	}
	return nil
}

// Messages iterates over the messages in b; it stops at a malformed one.
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

// Attrs is the attributes of a message or within an attribute, or the value of one.
type Attrs []byte

// All iterates over the attributes, by kind without its flags; it stops at a
// malformed one.
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

// Get goes down through kinds, and returns the first attribute there or nil.
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

// Number is what Get finds as a number in network order, or 0.
func (a Attrs) Number(kinds ...uint16) (n uint64) {
	for _, c := range a.Get(kinds...) {
		n = n<<8 | uint64(c)
	}
	return n
}

// Text is what Get finds as a zero-terminated string, or empty.
func (a Attrs) Text(kinds ...uint16) string {
	return string(bytes.TrimSuffix(a.Get(kinds...), []byte{0}))
}
