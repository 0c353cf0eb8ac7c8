package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	vishvananda "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// netlinkKernel is the kernel.
type netlinkKernel struct{}

// dumpAttempts bounds how often a listing is begun again because others
// changed what it lists.
const dumpAttempts = 20

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
	err := vishvananda.LinkDel(&vishvananda.GenericLink{LinkAttrs: vishvananda.LinkAttrs{Index: l.index}})
	if errors.Is(err, unix.ENODEV) {
		return nil // another process was faster
	}
	return err
}

// ask sends a request, which fill makes whole, and calls each for the answers.
func ask(ctx context.Context, protocol int, kind, flags uint16, header [4]byte, fill func(*netlink.Builder), each func(netlink.Message)) error {
	conn, err := netlink.Open(protocol)
	if err != nil {
		return err
	}
	defer conn.Close()
	return netlink.Settled(ctx, dumpAttempts, func() error {
		conn.Request(kind, flags, header)
		fill(&conn.Builder)
		return conn.Ask(each)
	})
}

// askIPSet is ask for IP sets.
func askIPSet(ctx context.Context, command, flags uint16, fill func(*netlink.Builder), each func(netlink.Message)) error {
	return ask(ctx, unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_IPSET<<8|command, flags, netlink.Netfilter(netlink.IPv4, 0), func(b *netlink.Builder) {
		b.Raw(nl.IPSET_ATTR_PROTOCOL, string([]byte{nl.IPSET_PROTOCOL}))
		fill(b)
	}, each)
}

// listNamesOnly is IPSET_FLAG_LIST_SETNAME.
const listNamesOnly = 1 << 1

// sets lists the names of all sets. Asking a kernel without IP sets would load
// the module, so it is not asked.
func (netlinkKernel) sets(ctx context.Context) ([]string, error) {
	if _, err := os.Stat("/sys/module"); err == nil {
		if _, err := os.Stat("/sys/module/ip_set"); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
	}
	names := map[string]bool{} // an interrupted listing may name a set twice
	err := askIPSet(ctx, nl.IPSET_CMD_LIST, unix.NLM_F_DUMP,
		func(b *netlink.Builder) { b.U32(nl.IPSET_ATTR_FLAGS|unix.NLA_F_NET_BYTEORDER, listNamesOnly) },
		func(m netlink.Message) {
			names[netlink.Text(netlink.Attribute(m.Payload(), nl.IPSET_ATTR_SETNAME))] = true
		})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the kernel has no IP sets
	}
	if err != nil {
		return nil, fmt.Errorf("list IP sets: %w", err)
	}
	return slices.Sorted(maps.Keys(names)), nil
}

func (netlinkKernel) removeSet(ctx context.Context, name string) error {
	return askIPSet(ctx, nl.IPSET_CMD_DESTROY, unix.NLM_F_ACK,
		func(b *netlink.Builder) { b.Text(nl.IPSET_ATTR_SETNAME, name) }, func(netlink.Message) {})
}

// The numbers of IPVS's generic netlink family that are used here.
const (
	ipvsFamily, ipvsVersion = "IPVS", 1

	ipvsDeleteService, ipvsGetService = 3, 4

	ipvsService = 1 // the attribute that holds those below

	ipvsAddressFamily, ipvsProtocol, ipvsAddress, ipvsPort = 1, 2, 3, 4
)

// askIPVS is ask for IPVS; nothing answers if the kernel has none. The family is
// looked for in the list of all, because asking for it by name may load the
// module.
func askIPVS(ctx context.Context, command byte, flags uint16, fill func(*netlink.Builder), each func(netlink.Message)) error {
	const idAttribute, nameAttribute = unix.CTRL_ATTR_FAMILY_ID, unix.CTRL_ATTR_FAMILY_NAME
	var family uint16
	err := ask(ctx, unix.NETLINK_GENERIC, unix.GENL_ID_CTRL, unix.NLM_F_DUMP, [4]byte{unix.CTRL_CMD_GETFAMILY, 1},
		func(*netlink.Builder) {}, func(m netlink.Message) {
			if id := netlink.Attribute(m.Payload(), idAttribute); len(id) == 2 && netlink.Text(netlink.Attribute(m.Payload(), nameAttribute)) == ipvsFamily {
				family = binary.NativeEndian.Uint16(id)
			}
		})
	if err != nil {
		return fmt.Errorf("list generic netlink families: %w", err)
	}
	if family == 0 {
		return nil
	}
	return ask(ctx, unix.NETLINK_GENERIC, family, flags, [4]byte{command, ipvsVersion}, fill, each)
}

func (netlinkKernel) servers(ctx context.Context) ([]server, error) {
	found := map[server]bool{} // an interrupted listing may tell of one twice
	err := askIPVS(ctx, ipvsGetService, unix.NLM_F_DUMP, func(*netlink.Builder) {}, func(m netlink.Message) {
		if s, ok := decodeServer(m.Payload()); ok {
			found[s] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list IPVS virtual servers: %w", err)
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b server) int { return a.addr.Compare(b.addr) }), nil
}

func (netlinkKernel) removeServer(ctx context.Context, s server) error {
	return askIPVS(ctx, ipvsDeleteService, unix.NLM_F_ACK, func(b *netlink.Builder) { encodeServer(b, s) }, func(netlink.Message) {})
}

// encodeServer names a server to IPVS.
func encodeServer(b *netlink.Builder, s server) {
	native := func(kind, v uint16) { b.Raw(kind, string(binary.NativeEndian.AppendUint16(nil, v))) }
	addr := make([]byte, 16) // IPVS keeps both families in as many bytes
	copy(addr, s.addr.Addr().AsSlice())
	b.Nest(ipvsService, func() {
		if s.addr.Addr().Is6() {
			native(ipvsAddressFamily, unix.AF_INET6)
		} else {
			native(ipvsAddressFamily, unix.AF_INET)
		}
		native(ipvsProtocol, uint16(s.protocol))
		b.Raw(ipvsAddress, string(addr))
		b.U16(ipvsPort, s.addr.Port())
	})
}

// decodeServer reads a server from a message of IPVS. Servers known by a
// firewall mark have no address and are not kube-proxy's.
func decodeServer(payload []byte) (s server, ok bool) {
	of := func(kind uint16) []byte { return netlink.Attribute(payload, ipvsService, kind) }
	native := func(kind uint16) uint16 {
		if b := of(kind); len(b) == 2 {
			return binary.NativeEndian.Uint16(b)
		}
		return 0
	}
	addr, protocol := of(ipvsAddress), native(ipvsProtocol)
	if len(addr) != 16 || protocol == 0 {
		return server{}, false
	}
	if native(ipvsAddressFamily) == unix.AF_INET {
		addr = addr[:4]
	}
	ip, ok := netip.AddrFromSlice(addr)
	return server{uint8(protocol), netip.AddrPortFrom(ip, netlink.Number[uint16](of(ipvsPort)))}, ok
}
