package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// netlinkKernel is the kernel.
type netlinkKernel struct{}

// dumpAttempts bounds how often a listing is begun again because others
// changed what it lists.
const dumpAttempts = 20

// settled runs a listing again while it is interrupted by changes.
func settled[T any](list func() (T, error)) (T, error) {
	var got T
	var err error
	for range dumpAttempts {
		if got, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return got, err
}

func (netlinkKernel) link() (*serviceLink, error) {
	link, err := netlink.LinkByName(linkName)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for link %s: %w", linkName, err)
	}
	addrs, err := settled(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of link %s: %w", linkName, err)
	}
	l := &serviceLink{index: link.Attrs().Index}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			l.addrs = append(l.addrs, addr.Unmap())
		}
	}
	return l, nil
}

func (netlinkKernel) removeLink(l *serviceLink) error {
	err := netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.index}})
	if errors.Is(err, unix.ENODEV) {
		return nil // somebody was faster
	}
	return err
}

// setRequest begins a request about IP sets.
func setRequest(command, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_IPSET<<8|command, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	return r
}

// attributes yields the attributes of a message behind its header, without
// their flags, up to the end or to what is malformed.
func attributes(message []byte, header int) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		b := message[min(header, len(message)):]
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) & nl.NLA_TYPE_MASK
			if n < unix.SizeofNlAttr || n > len(b) || !yield(kind, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min((n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}

// listNamesOnly is IPSET_FLAG_LIST_SETNAME.
const listNamesOnly = 1 << 1

// sets lists the names of all sets. Asking a kernel without IP sets would load
// the module, so it is not asked.
func (netlinkKernel) sets() ([]string, error) {
	if _, err := os.Stat("/sys/module"); err == nil {
		if _, err := os.Stat("/sys/module/ip_set"); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
	}
	messages, err := settled(func() ([][]byte, error) {
		r := setRequest(nl.IPSET_CMD_LIST, unix.NLM_F_DUMP)
		r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_FLAGS|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, listNamesOnly)))
		return r.Execute(unix.NETLINK_NETFILTER, 0)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the kernel has no IP sets
	}
	if err != nil {
		return nil, fmt.Errorf("list IP sets: %w", err)
	}
	var names []string
	for _, m := range messages {
		for kind, value := range attributes(m, nl.SizeofNfgenmsg) {
			if kind == nl.IPSET_ATTR_SETNAME {
				names = append(names, unix.ByteSliceToString(value))
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

func (netlinkKernel) removeSet(name string) error {
	r := setRequest(nl.IPSET_CMD_DESTROY, unix.NLM_F_ACK)
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case errors.Is(err, syscall.Errno(nl.IPSET_ERR_BUSY)):
		return errBusy
	default:
		return err
	}
}

// The numbers of IPVS's generic netlink family that are used here.
const (
	ipvsFamily  = "IPVS"
	ipvsVersion = 1

	ipvsDeleteService = 3
	ipvsGetService    = 4

	ipvsService = 1 // the attribute that holds those below

	ipvsAddressFamily = 1
	ipvsProtocol      = 2
	ipvsAddress       = 3
	ipvsPort          = 4
)

// ipvsRequest begins a request to IPVS, nil if the kernel has none. The family
// is looked for in the list of all, because asking for it by name may load the
// module.
func ipvsRequest(command uint8, flags int) (*nl.NetlinkRequest, error) {
	families, err := settled(netlink.GenlFamilyList)
	if err != nil {
		return nil, fmt.Errorf("list generic netlink families: %w", err)
	}
	for _, f := range families {
		if f.Name == ipvsFamily {
			r := nl.NewNetlinkRequest(int(f.ID), flags)
			r.AddData(&nl.Genlmsg{Command: command, Version: ipvsVersion})
			return r, nil
		}
	}
	return nil, nil
}

func (netlinkKernel) servers() ([]server, error) {
	messages, err := settled(func() ([][]byte, error) {
		r, err := ipvsRequest(ipvsGetService, unix.NLM_F_DUMP)
		if r == nil || err != nil {
			return nil, err
		}
		return r.Execute(unix.NETLINK_GENERIC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("list IPVS virtual servers: %w", err)
	}
	var servers []server
	for _, m := range messages {
		if s, ok := decodeServer(m); ok {
			servers = append(servers, s)
		}
	}
	return servers, nil
}

func (netlinkKernel) removeServer(s server) error {
	r, err := ipvsRequest(ipvsDeleteService, unix.NLM_F_ACK)
	if r == nil || err != nil {
		return err
	}
	r.AddData(encodeServer(s))
	_, err = r.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// encodeServer names a server to IPVS.
func encodeServer(s server) *nl.RtAttr {
	family := uint16(unix.AF_INET)
	if s.addr.Addr().Is6() {
		family = unix.AF_INET6
	}
	addr := make([]byte, 16) // IPVS keeps both families in as many bytes
	copy(addr, s.addr.Addr().AsSlice())
	a := nl.NewRtAttr(unix.NLA_F_NESTED|ipvsService, nil)
	a.AddRtAttr(ipvsAddressFamily, binary.NativeEndian.AppendUint16(nil, family))
	a.AddRtAttr(ipvsProtocol, binary.NativeEndian.AppendUint16(nil, uint16(s.protocol)))
	a.AddRtAttr(ipvsAddress, addr)
	a.AddRtAttr(ipvsPort, binary.BigEndian.AppendUint16(nil, s.addr.Port()))
	return a
}

// decodeServer reads a server from a message of IPVS. Servers known by a
// firewall mark have no address and are not kube-proxy's.
func decodeServer(message []byte) (s server, ok bool) {
	var family, protocol, port uint16
	var addr []byte
	for outer, nested := range attributes(message, nl.SizeofGenlmsg) {
		if outer != ipvsService {
			continue
		}
		for kind, value := range attributes(nested, 0) {
			switch {
			case kind == ipvsAddressFamily && len(value) == 2:
				family = binary.NativeEndian.Uint16(value)
			case kind == ipvsProtocol && len(value) == 2:
				protocol = binary.NativeEndian.Uint16(value)
			case kind == ipvsAddress && len(value) == 16:
				addr = value
			case kind == ipvsPort && len(value) == 2:
				port = binary.BigEndian.Uint16(value)
			}
		}
	}
	if addr == nil || protocol == 0 {
		return server{}, false
	}
	if family == unix.AF_INET {
		addr = addr[:4]
	}
	ip, ok := netip.AddrFromSlice(addr)
	return server{uint8(protocol), netip.AddrPortFrom(ip, port)}, ok
}
