package nft

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// message is one netlink message of what the kernel sent.
type message struct {
	kind  uint16
	flags uint16
	seq   uint32
	port  uint32
	body  []byte
}

// messages iterates over the messages in b; it stops at a malformed one.
func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.NLMSG_HDRLEN || n > len(b) {
				return
			}
			m := message{
				kind:  binary.NativeEndian.Uint16(b[4:]),
				flags: binary.NativeEndian.Uint16(b[6:]),
				seq:   binary.NativeEndian.Uint32(b[8:]),
				port:  binary.NativeEndian.Uint32(b[12:]),
				body:  b[unix.NLMSG_HDRLEN:n],
			}
			if !yield(m) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// attributes iterates over the attributes in b, by kind without its flags.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			n := int(binary.NativeEndian.Uint16(b))
			if n < 4 || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&0x3fff, b[4:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// attribute returns the first attribute of a kind, or nil.
func attribute(b []byte, kind uint16) []byte {
	for k, v := range attributes(b) {
		if k == kind {
			return v
		}
	}
	return nil
}

// payload returns a message's attributes, after the netfilter header.
func (m message) payload() []byte {
	if len(m.body) < 4 {
		return nil
	}
	return m.body[4:]
}

// text decodes a zero-terminated string.
func text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}

// number decodes a number; it is 0 if there is none.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// comment finds the comment in userdata.
func comment(userdata []byte, kind byte) string {
	for len(userdata) >= 2 {
		n := int(userdata[1])
		if 2+n > len(userdata) {
			return ""
		}
		if userdata[0] == kind {
			return text(userdata[2 : 2+n])
		}
		userdata = userdata[2+n:]
	}
	return ""
}

// decodeElement decodes one element of a listing.
func decodeElement(b []byte) Element {
	var e Element
	for kind, v := range attributes(b) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = string(attribute(v, unix.NFTA_DATA_VALUE))
		case setElemKeyEnd:
			e.KeyEnd = string(attribute(v, unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_DATA:
			if value := attribute(v, unix.NFTA_DATA_VALUE); value != nil {
				e.Data = string(value)
			} else {
				e.Verdict = decodeVerdict(attribute(v, unix.NFTA_DATA_VERDICT))
			}
		}
	}
	return e
}

// decodeVerdict decodes a verdict; one that we never write stays the zero value.
func decodeVerdict(b []byte) Verdict {
	code := attribute(b, unix.NFTA_VERDICT_CODE)
	if len(code) != 4 {
		return Verdict{}
	}
	switch binary.BigEndian.Uint32(code) {
	case 0:
		return Verdict{Code: Drop}
	case 1:
		return Verdict{Code: Accept}
	case gotoCode:
		return Verdict{Code: Goto, Chain: text(attribute(b, unix.NFTA_VERDICT_CHAIN))}
	default:
		return Verdict{}
	}
}
