package ipt

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Stamp returns the generation of nf_tables, or the number of entries of each
// legacy table and their size.
func (c *Conn) Stamp(context.Context) (string, error) {
	if c.variant == NFT {
		return generation()
	}
	names, err := LegacyTables(c.family)
	if err != nil {
		return "", err
	}
	slices.Sort(names)
	var stamp strings.Builder
	for _, name := range names { // asking for any other would make it
		entries, size, err := legacyInfo(c.family, name)
		if err != nil {
			return "", fmt.Errorf("ask for the size of table %s: %w", name, err)
		}
		fmt.Fprintf(&stamp, "%s %d %d ", name, entries, size)
	}
	return stamp.String(), nil
}

// generation asks nf_tables for its generation, which every transaction moves on.
func generation() (string, error) {
	const idAttribute = 1
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return "", fmt.Errorf("ask for the generation of nf_tables: %w", err)
	}
	defer conn.Close()
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: netlink.Request,
		},
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return "", fmt.Errorf("ask for the generation of nf_tables: %w", err)
	}
	for _, a := range answers {
		const header = 4
		if len(a.Data) < header {
			continue
		}
		attributes, err := netlink.UnmarshalAttributes(a.Data[header:])
		if err != nil {
			return "", fmt.Errorf("read the generation of nf_tables: %w", err)
		}
		for _, at := range attributes {
			if at.Type == idAttribute {
				return fmt.Sprintf("%x", at.Data), nil
			}
		}
	}
	return "", fmt.Errorf("ask for the generation of nf_tables: no answer")
}

// tableInfo is the kernel's struct ipt_getinfo, which is that of IPv6 too.
type tableInfo struct {
	name               [32]byte
	hooks              uint32
	entry, underflow   [5]uint32
	entries, entryList uint32
}

// legacyInfo asks for the number of entries of a table and their size in bytes.
func legacyInfo(f Family, table string) (entries, size uint32, err error) {
	const getInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	domain, level := unix.AF_INET, unix.IPPROTO_IP
	if f == IPv6 {
		domain, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	var info tableInfo
	copy(info.name[:len(info.name)-1], table)
	length := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, 0, errno
	}
	return info.entries, info.entryList, nil
}
