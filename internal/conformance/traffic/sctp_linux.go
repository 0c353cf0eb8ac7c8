package traffic

import (
	"encoding/binary"
	"hash/crc32"
	"slices"

	"golang.org/x/sys/unix"
)

// The chunks that open an SCTP association, and the parameter of the second
// that may carry any bytes.
const (
	sctpInit    = 1
	sctpInitAck = 2
	stateCookie = 7

	sctpChunk  = 20 // bytes of sctpHeader that belong to the chunk
	cookieHead = 4  // bytes of a parameter before its text: kind and length
)

// sctpHeader is the fixed part of both.
type sctpHeader struct {
	Src, Dst               uint16
	Verification, Checksum uint32
	Kind, Flags            uint8
	Length                 uint16 // of the chunk, which begins with Kind
	Tag, Window            uint32
	Streams                [2]uint16 // outbound, inbound
	TSN                    uint32
}

// sctpPacket is an INIT or an INIT ACK, as far as the lab needs it.
type sctpPacket struct {
	src, dst     uint16
	verification uint32
	kind         byte
	tag          uint32 // the sender's
	text         string // INIT ACK only
}

// marshal returns the packet with a right checksum: connection tracking looks.
func (p sctpPacket) marshal() []byte {
	h := sctpHeader{
		Src: p.src, Dst: p.dst, Verification: p.verification, Kind: p.kind, Length: sctpChunk,
		Tag: p.tag, Window: 1 << 16, Streams: [2]uint16{1, 1}, TSN: p.tag,
	}
	var cookie []byte
	if p.text != "" {
		cookie = binary.BigEndian.AppendUint32(nil, uint32(stateCookie<<16|cookieHead+len(p.text)))
		cookie = append(cookie, p.text...)
		h.Length += uint16(len(cookie))
		cookie = append(cookie, make([]byte, -len(cookie)&3)...)
	}
	b, _ := binary.Append(nil, binary.BigEndian, h) // fails for types without a size only
	b = append(b, cookie...)
	binary.LittleEndian.PutUint32(b[8:], sctpSum(b))
	return b
}

// sctpSum is the checksum of a packet, in which that itself counts as zero.
func sctpSum(b []byte) uint32 {
	b = slices.Clone(b)
	clear(b[8:12])
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
}

// parseSCTP reads a packet that marshal has written, and refuses others.
func parseSCTP(b []byte) (sctpPacket, bool) {
	var h sctpHeader
	n, err := binary.Decode(b, binary.BigEndian, &h)
	if err != nil || sctpSum(b) != binary.LittleEndian.Uint32(b[8:]) {
		return sctpPacket{}, false
	}
	p := sctpPacket{h.Src, h.Dst, h.Verification, h.Kind, h.Tag, ""}
	if end := n - sctpChunk + int(h.Length); end > n+cookieHead && end <= len(b) {
		p.text = string(b[n+cookieHead : end])
	}
	return p, true
}

// takePort makes a raw socket hear only what is sent to one port: it would be given
// every SCTP packet to its address otherwise, and miss some. An IPv4 raw socket has the
// IP header before it, which has no options here.
func takePort(fd int, port uint16, is6 bool) error {
	offset := uint32(20 + 2)
	if is6 {
		offset = 2
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: offset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	prog := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog)
}
