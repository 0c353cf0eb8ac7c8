package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	vishvananda "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
	"sluice/internal/proxy"
)

// netlinkKernel is the kernel.
type netlinkKernel struct{}

func (netlinkKernel) link() (*serviceLink, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("look for link %s: %w", linkName, err)
	}
	i := slices.IndexFunc(all, func(n net.Interface) bool { return n.Name == linkName })
	if i < 0 {
		return nil, nil
	}
	addrs, err := all[i].Addrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of link %s: %w", linkName, err)
	}
	l := &serviceLink{index: all[i].Index}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			l.addrs = append(l.addrs, p.Addr().Unmap())
		}
	}
	return l, nil
}

func (netlinkKernel) removeLink(l *serviceLink) error {
	return vishvananda.LinkDel(&vishvananda.GenericLink{LinkAttrs: vishvananda.LinkAttrs{Index: l.index}})
}

// askIPSet sends a request about IP sets, which fill completes.
func askIPSet(ctx context.Context, command, flags uint16, fill func(*netlink.Conn)) ([]netlink.Attrs, error) {
	return netlink.Once(ctx, unix.NETLINK_NETFILTER, func(c *netlink.Conn) {
		c.Request(unix.NFNL_SUBSYS_IPSET<<8|command, flags, netlink.Netfilter(netlink.IPv4, 0))
		c.Raw(nl.IPSET_ATTR_PROTOCOL, string([]byte{nl.IPSET_PROTOCOL}))
		fill(c)
	})
}

// sets lists the names of all sets. Asking a kernel without IP sets would load
// the module, so it is not asked.
func (netlinkKernel) sets(ctx context.Context) (names []string, err error) {
	const listNamesOnly = 1 << 1 // IPSET_FLAG_LIST_SETNAME
	if _, err := os.Stat("/sys/module"); err == nil {
		if _, err := os.Stat("/sys/module/ip_set"); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
	}
	sets, err := askIPSet(ctx, nl.IPSET_CMD_LIST, unix.NLM_F_DUMP,
		func(c *netlink.Conn) { c.U32(nl.IPSET_ATTR_FLAGS|unix.NLA_F_NET_BYTEORDER, listNamesOnly) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the kernel has no IP sets
	}
	if err != nil {
		return nil, fmt.Errorf("list IP sets: %w", err)
	}
	for _, s := range sets {
		names = append(names, s.Text(nl.IPSET_ATTR_SETNAME))
	}
	slices.Sort(names)
	return names, nil
}

func (netlinkKernel) removeSet(ctx context.Context, name string) error {
	_, err := askIPSet(ctx, nl.IPSET_CMD_DESTROY, unix.NLM_F_ACK, func(c *netlink.Conn) { c.Text(nl.IPSET_ATTR_SETNAME, name) })
	return err
}

// The numbers of IPVS's generic netlink family that are used here.
const (
	ipvsFamily, ipvsVersion = "IPVS", 1

	ipvsDeleteService, ipvsGetService = 3, 4

	ipvsService = 1 // the attribute that holds those below

	ipvsAddressFamily, ipvsProtocol, ipvsAddress, ipvsPort = 1, 2, 3, 4
)

// askIPVS sends a request, which fill completes; nothing answers if the kernel has
// no IPVS. The family is looked for in the list of all, because asking for it by
// name may load the module.
func askIPVS(ctx context.Context, command byte, flags uint16, fill func(*netlink.Builder)) ([]netlink.Attrs, error) {
	families, err := netlink.Once(ctx, unix.NETLINK_GENERIC, func(c *netlink.Conn) {
		c.Request(unix.GENL_ID_CTRL, unix.NLM_F_DUMP, [4]byte{unix.CTRL_CMD_GETFAMILY, 1})
	})
	if err != nil {
		return nil, fmt.Errorf("list generic netlink families: %w", err)
	}
	for _, f := range families {
		if id := native(f.Get(unix.CTRL_ATTR_FAMILY_ID)); f.Text(unix.CTRL_ATTR_FAMILY_NAME) == ipvsFamily {
			return netlink.Once(ctx, unix.NETLINK_GENERIC, func(c *netlink.Conn) {
				c.Request(id, flags, [4]byte{command, ipvsVersion})
				fill(&c.Builder)
			})
		}
	}
	return nil, nil
}

func (netlinkKernel) servers(ctx context.Context) (servers []server, err error) {
	answers, err := askIPVS(ctx, ipvsGetService, unix.NLM_F_DUMP, func(*netlink.Builder) {})
	if err != nil {
		return nil, fmt.Errorf("list IPVS virtual servers: %w", err)
	}
	for _, a := range answers {
		if s, ok := decodeServer(a); ok {
			servers = append(servers, s)
		}
	}
	slices.SortFunc(servers, func(a, b server) int { return a.addr.Compare(b.addr) })
	return servers, nil
}

func (netlinkKernel) removeServer(ctx context.Context, s server) error {
	_, err := askIPVS(ctx, ipvsDeleteService, unix.NLM_F_ACK, func(b *netlink.Builder) { encodeServer(b, s) })
	return err
}

// encodeServer names a server to IPVS.
func encodeServer(b *netlink.Builder, s server) {
	native := func(kind, v uint16) { b.Raw(kind, string(binary.NativeEndian.AppendUint16(nil, v))) }
	family, addr := uint16(unix.AF_INET), make([]byte, 16) // IPVS keeps both families in as many bytes
	if copy(addr, s.addr.Addr().AsSlice()) == len(addr) {
		family = unix.AF_INET6
	}
	b.Nest(ipvsService, func() {
		native(ipvsAddressFamily, family)
		native(ipvsProtocol, uint16(s.protocol))
		b.Raw(ipvsAddress, string(addr))
		b.U16(ipvsPort, s.addr.Port())
	})
}

// native decodes a number in the order of this machine.
func native(b []byte) uint16 {
	if len(b) != 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

// decodeServer reads a server from a message of IPVS. Servers known by a
// firewall mark have no address and are not kube-proxy's.
func decodeServer(message netlink.Attrs) (s server, ok bool) {
	service := message.Get(ipvsService)
	addr, protocol := service.Get(ipvsAddress), native(service.Get(ipvsProtocol))
	if len(addr) != 16 || protocol == 0 {
		return server{}, false
	}
	if native(service.Get(ipvsAddressFamily)) == unix.AF_INET {
		addr = addr[:4]
	}
	ip, ok := netip.AddrFromSlice(addr)
	return server{proxy.Protocol(protocol), netip.AddrPortFrom(ip, uint16(service.Number(ipvsPort)))}, ok
}
