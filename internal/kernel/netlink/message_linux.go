package netlink

import (
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

// Builder writes messages into one buffer that is used again. It keeps its first
// error.
type Builder struct {
	buf []byte
	seq uint32
	msg int // where the last message begins
	err error
}

// Reset forgets all messages.
func (b *Builder) Reset() { b.buf, b.msg, b.err = b.buf[:0], 0, nil }

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

// Fail makes sending fail, if nothing else has.
func (b *Builder) Fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// Open starts an attribute that holds others, Close ends it.
func (b *Builder) Open(kind uint16) int {
	at := len(b.buf)
	b.head(kind|unix.NLA_F_NESTED, 0)
	return at
}

// Close ends the attribute that Open started there.
func (b *Builder) Close(at int) {
	n := len(b.buf) - at
	if n > 0xffff {
		b.Fail(fmt.Errorf("attribute of %d bytes is longer than netlink can say", n))
	}
	binary.NativeEndian.PutUint16(b.buf[at:], uint16(n))
}

// Nest writes an attribute that holds what fill writes.
func (b *Builder) Nest(kind uint16, fill func()) {
	at := b.Open(kind)
	fill()
	b.Close(at)
}

func (b *Builder) head(kind uint16, n int) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(unix.SizeofNlAttr+n))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
}

// Append writes bytes that are attributes already.
func (b *Builder) Append(encoded []byte) {
	b.buf = append(b.buf, encoded...)
	b.pad()
}

func (b *Builder) pad() {
	for len(b.buf)%4 != 0 {
		b.buf = append(b.buf, 0)
	}
}

// Raw writes bytes.
func (b *Builder) Raw(kind uint16, v string) {
	b.head(kind, len(v))
	b.buf = append(b.buf, v...)
	b.pad()
}

// Text writes a zero-terminated string.
func (b *Builder) Text(kind uint16, v string) {
	b.head(kind, len(v)+1)
	b.buf = append(b.buf, v...)
	b.buf = append(b.buf, 0)
	b.pad()
}

// U16 writes a number in network order.
func (b *Builder) U16(kind, v uint16) {
	b.head(kind, 2)
	b.buf = binary.BigEndian.AppendUint16(b.buf, v)
	b.pad()
}

// U32 writes a number in network order.
func (b *Builder) U32(kind uint16, v uint32) {
	b.head(kind, 4)
	b.buf = binary.BigEndian.AppendUint32(b.buf, v)
}

// Message is one message of what the kernel sent.
type Message struct {
	Kind, Flags uint16
	Seq, Port   uint32
	Body        []byte
}

// Payload returns a message's attributes, behind the header of its protocol.
func (m Message) Payload() []byte { return m.Body[min(len(m.Body), 4):] }

// Err returns the error that the last message of an answer tells of.
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

// Attributes iterates over the attributes in b, by kind without its flags; it
// stops at a malformed one.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if n < unix.SizeofNlAttr || n > len(b) || !yield(kind, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// Attribute returns the first attribute that is found by going down through
// kinds, or nil.
func Attribute(b []byte, kinds ...uint16) []byte {
	for _, kind := range kinds {
		var found []byte
		for k, v := range Attributes(b) {
			if k == kind {
				found = v
				break
			}
		}
		b = found
	}
	return b
}

// Number decodes a number in network order; it is 0 if its length is not that of T.
func Number[T uint16 | uint32 | uint64](b []byte) (n T) {
	if len(b) == binary.Size(n) {
		for _, c := range b {
			n = n<<8 | T(c)
		}
	}
	return n
}

// Text decodes a zero-terminated string.
func Text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}
