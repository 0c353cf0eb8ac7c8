package app

import (
	"encoding/binary"
	"encoding/hex"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// endpointOf returns the endpoint of an open TCP connection of this host, if the kernel's
// sockets or IPVS have it. Conntrack knows nothing of connections that are translated at
// the socket, relayed by a process, or taken by IPVS.
func endpointOf(client, service netip.AddrPort) (netip.AddrPort, bool) {
	return endpointIn(os.DirFS("/proc/net"), client, service)
}

func endpointIn(proc fs.FS, client, service netip.AddrPort) (netip.AddrPort, bool) {
	sockets := "tcp"
	if client.Addr().Is6() {
		sockets = "tcp6"
	}
	for fields := range lines(proc, sockets) { // number, own address, peer, ...
		if len(fields) > 2 && socketAddress(fields[1]) == client {
			if peer := socketAddress(fields[2]); peer.IsValid() && peer != service {
				return peer, true
			}
		}
	}
	for fields := range lines(proc, "ip_vs_conn") { // protocol, and address and port of client, service and endpoint
		if len(fields) > 6 && fields[0] == "TCP" && ipvsAddress(fields[1:]) == client && ipvsAddress(fields[3:]) == service {
			return ipvsAddress(fields[5:]), true
		}
	}
	return netip.AddrPort{}, false
}

// lines yields the fields of each line of a file; none if there is no such file, as
// without IPv6 or IPVS.
func lines(proc fs.FS, file string) func(yield func([]string) bool) {
	text, _ := fs.ReadFile(proc, file)
	return func(yield func([]string) bool) {
		for line := range strings.Lines(string(text)) {
			if !yield(strings.Fields(line)) {
				return
			}
		}
	}
}

// socketAddress parses an address of /proc/net/tcp: words in the byte order of the host.
func socketAddress(text string) netip.AddrPort {
	word, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(word)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, _ := netip.AddrFromSlice(raw) // the zero Addr if the length is wrong
	return addrPort(addr, port)
}

// ipvsAddress parses an address and a port of /proc/net/ip_vs_conn.
func ipvsAddress(fields []string) netip.AddrPort {
	addr, err := netip.ParseAddr(fields[0])
	if raw, failed := hex.DecodeString(fields[0]); err != nil && failed == nil {
		addr, _ = netip.AddrFromSlice(raw)
	}
	return addrPort(addr, fields[1])
}

// addrPort returns the zero AddrPort if the port is no hexadecimal number.
func addrPort(addr netip.Addr, port string) netip.AddrPort {
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil || !addr.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, uint16(n))
}
