package traffic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// isRaw reports whether a protocol's first packets are made here, as the kernel
// has no sockets for it.
func isRaw(p proxy.Protocol) bool { return p == proxy.SCTP && !hasSCTP() }

// hasSCTP and hasMPTCP ask the kernel once: each time it looks for a module to load.
var (
	hasSCTP  = sync.OnceValue(func() bool { return hasStream(unix.IPPROTO_SCTP) })
	hasMPTCP = sync.OnceValue(func() bool { return hasStream(unix.IPPROTO_MPTCP) })
)

func hasStream(protocol int) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
	return err == nil && unix.Close(fd) == nil
}

// listenSCTP returns a listener of a kernel that has SCTP. The net package
// takes it for one of TCP, as both have connections that are accepted.
func listenSCTP(a netip.AddrPort) (net.Listener, error) {
	fd, err := newSocket(proxy.SCTP, a.Addr(), 0, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "SCTP")
	defer func() { _ = f.Close() }()
	// Its connections end in an orderly way, with all that was sent. What does not
	// fit into the queue of those to be accepted is aborted, so it is a long one.
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	if err = errors.Join(err, unix.Bind(fd, sockaddr(a)), unix.Listen(fd, 4096)); err != nil {
		return nil, err
	}
	return net.FileListener(f)
}

// aborted reports whether a refusal of an SCTP association came from the other
// end. After a message of ICMP the kernel goes on trying.
func (a *attempt) aborted() bool {
	return a.Protocol == proxy.SCTP && !a.raw && unix.Connect(a.fd, sockaddr(a.Dst)) != unix.EALREADY
}

// The chunks that open an SCTP association, and the parameter of the second
// that may carry any bytes.
const (
	sctpInit    = 1
	sctpInitAck = 2
	stateCookie = 7

	sctpChunk  = 20 // bytes of sctpPacket that belong to the chunk
	cookieHead = 4  // bytes of a parameter before its text: kind and length
)

// sctpPacket is an INIT or an INIT ACK up to where parameters begin.
type sctpPacket struct {
	Src, Dst               uint16
	Verification, Checksum uint32
	Kind, Flags            uint8
	Length                 uint16 // of the chunk, which begins with Kind
	Tag, Window            uint32
	Streams                [2]uint16 // outbound, inbound
	TSN                    uint32
}

// marshal returns the packet with a right checksum, as connection tracking looks,
// and with a text, which an INIT has not.
func (p sctpPacket) marshal(text []byte) []byte {
	p.Checksum, p.Length, p.Window, p.Streams, p.TSN = 0, sctpChunk, 1<<16, [2]uint16{1, 1}, p.Tag
	var cookie []byte
	if len(text) > 0 {
		cookie = binary.BigEndian.AppendUint32(nil, uint32(stateCookie<<16|cookieHead+len(text)))
		cookie = append(cookie, text...)
		p.Length += uint16(len(cookie))
		cookie = append(cookie, make([]byte, -len(cookie)&3)...)
	}
	b, _ := binary.Append(nil, binary.BigEndian, p) // fails for types without a size only
	b = append(b, cookie...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// parseSCTP reads a packet that marshal has written, and refuses others.
func parseSCTP(b []byte) (p sctpPacket, text []byte, ok bool) {
	n, err := binary.Decode(b, binary.BigEndian, &p)
	if end := n - sctpChunk + int(p.Length); end > n+cookieHead && end <= len(b) {
		text = b[n+cookieHead : end]
	}
	return p, text, err == nil && bytes.Equal(b, p.marshal(text))
}

// filterPort makes a raw socket hear only what is sent to one port: it would be given
// every SCTP packet to its address otherwise, and miss some. An IPv4 raw socket has the
// IP header before it, which has no options here.
func filterPort(fd int, port uint16, is6 bool) error {
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
