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

// isRaw reports whether a protocol uses raw sockets, because the kernel has no sockets for it.
func isRaw(p proxy.Protocol) bool { return p == proxy.SCTP && !hasSCTP() }

// hasSCTP and hasMPTCP ask the kernel once, because each attempt makes it search for a module.
var (
	hasSCTP  = sync.OnceValue(func() bool { return hasStream(unix.IPPROTO_SCTP) })
	hasMPTCP = sync.OnceValue(func() bool { return hasStream(unix.IPPROTO_MPTCP) })
)

func hasStream(protocol int) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
	return err == nil && unix.Close(fd) == nil
}

// listenSCTP returns a listener of kernel SCTP. The net package treats it as TCP, since both accept
// connections.
func listenSCTP(a netip.AddrPort) (net.Listener, error) {
	fd, err := newSocket(proxy.SCTP, a.Addr(), 0, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "SCTP")
	defer func() { _ = f.Close() }()
	// Connections close gracefully, after delivering everything. The kernel aborts connections that
	// do not fit into the accept queue, so it is long.
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	if err = errors.Join(err, unix.Bind(fd, sockaddr(a)), unix.Listen(fd, 4096)); err != nil {
		return nil, err
	}
	return net.FileListener(f)
}

// aborted reports whether the peer refused an SCTP association. After an ICMP error the kernel
// keeps trying.
func (a *attempt) aborted() bool {
	return a.Protocol == proxy.SCTP && !a.raw && unix.Connect(a.fd, sockaddr(a.Dst)) != unix.EALREADY
}

// The chunks that open an SCTP association, and the parameter of the INIT ACK that may carry
// arbitrary bytes.
const (
	sctpInit    = 1
	sctpInitAck = 2
	stateCookie = 7

	sctpChunk  = 20 // bytes of sctpPacket that belong to the chunk
	cookieHead = 4  // bytes of a parameter's header: type and length
)

// sctpPacket is an INIT or INIT ACK up to its parameters.
type sctpPacket struct {
	Src, Dst               uint16
	Verification, Checksum uint32
	Kind, Flags            uint8
	Length                 uint16 // of the chunk, which begins with Kind
	Tag, Window            uint32
	Streams                [2]uint16 // outbound, inbound
	TSN                    uint32
}

// marshal returns the packet with a correct checksum, which conntrack verifies, and with text as
// state cookie; an INIT has none.
func (p sctpPacket) marshal(text []byte) []byte {
	p.Checksum, p.Length, p.Window, p.Streams, p.TSN = 0, sctpChunk, 1<<16, [2]uint16{1, 1}, p.Tag
	var cookie []byte
	if len(text) > 0 {
		cookie = binary.BigEndian.AppendUint32(nil, uint32(stateCookie<<16|cookieHead+len(text)))
		cookie = append(cookie, text...)
		p.Length += uint16(len(cookie))
		cookie = append(cookie, make([]byte, -len(cookie)&3)...)
	}
	b, _ := binary.Append(nil, binary.BigEndian, p) // fails only for types without a fixed size
	b = append(b, cookie...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// parseSCTP parses a packet written by marshal; ok is false for any other.
func parseSCTP(b []byte) (p sctpPacket, text []byte, ok bool) {
	n, err := binary.Decode(b, binary.BigEndian, &p)
	if end := n - sctpChunk + int(p.Length); end > n+cookieHead && end <= len(b) {
		text = b[n+cookieHead : end]
	}
	return p, text, err == nil && bytes.Equal(b, p.marshal(text))
}

// filterPort restricts a raw socket to packets to one port. Otherwise it would receive every SCTP
// packet to its address, and lose some. An IPv4 raw socket sees the IP header, which has no options
// here.
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
