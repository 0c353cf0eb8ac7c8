package traffic

import (
	"encoding/binary"
	"hash/crc32"

	"golang.org/x/sys/unix"
)

// The chunks that open an SCTP association, and the parameter of the second
// that may carry any bytes.
const (
	sctpInit    = 1
	sctpInitAck = 2
	stateCookie = 7
)

const (
	sctpHeader = 12 // ports, verification tag, checksum
	sctpChunk  = 20 // chunk header and the fixed part of INIT and INIT ACK
)

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
	length := sctpChunk
	if p.text != "" {
		length += 4 + len(p.text)
	}
	b := make([]byte, sctpHeader+(length+3)/4*4)
	binary.BigEndian.PutUint16(b[0:], p.src)
	binary.BigEndian.PutUint16(b[2:], p.dst)
	binary.BigEndian.PutUint32(b[4:], p.verification)
	c := b[sctpHeader:]
	c[0] = p.kind
	binary.BigEndian.PutUint16(c[2:], uint16(length))
	binary.BigEndian.PutUint32(c[4:], p.tag)
	binary.BigEndian.PutUint32(c[8:], 1<<16) // receiver window
	binary.BigEndian.PutUint16(c[12:], 1)    // outbound streams
	binary.BigEndian.PutUint16(c[14:], 1)    // inbound streams
	binary.BigEndian.PutUint32(c[16:], p.tag)
	if p.text != "" {
		binary.BigEndian.PutUint16(c[20:], stateCookie)
		binary.BigEndian.PutUint16(c[22:], uint16(4+len(p.text)))
		copy(c[24:], p.text)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// parseSCTP reads a packet that marshal has written, and refuses others.
func parseSCTP(b []byte) (sctpPacket, bool) {
	if len(b) < sctpHeader+sctpChunk {
		return sctpPacket{}, false
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	zeroed := append([]byte(nil), b...)
	clear(zeroed[8:12])
	if crc32.Checksum(zeroed, crc32.MakeTable(crc32.Castagnoli)) != sum {
		return sctpPacket{}, false
	}
	c := b[sctpHeader:]
	p := sctpPacket{
		src:          binary.BigEndian.Uint16(b[0:]),
		dst:          binary.BigEndian.Uint16(b[2:]),
		verification: binary.BigEndian.Uint32(b[4:]),
		kind:         c[0],
		tag:          binary.BigEndian.Uint32(c[4:]),
	}
	if length := int(binary.BigEndian.Uint16(c[2:])); length > sctpChunk+4 && length <= len(c) {
		p.text = string(c[sctpChunk+4 : length])
	}
	return p, true
}

// takePort makes a raw socket hear only what is sent to one port: it would be
// given every SCTP packet to its address otherwise. An IPv4 raw socket has the
// IP header before it, whose length its first byte says.
func takePort(fd int, port uint16, is6 bool) error {
	load := []unix.SockFilter{
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 2},
	}
	if is6 {
		load = []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 2}}
	}
	program := append(load,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	)
	prog := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog)
}
