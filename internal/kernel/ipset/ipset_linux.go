package ipset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// ErrBusy means that a set is in use.
const ErrBusy = syscall.Errno(nl.IPSET_ERR_BUSY)

// request sends a request whose attributes fill writes.
func request(ctx context.Context, command, flags uint16, fill func(*netlink.Conn)) ([]netlink.Attrs, error) {
	return netlink.Once(ctx, unix.NETLINK_NETFILTER, func(c *netlink.Conn) {
		c.Request(unix.NFNL_SUBSYS_IPSET<<8|command, flags, netlink.Netfilter(netlink.IPv4, 0))
		c.Raw(nl.IPSET_ATTR_PROTOCOL, string([]byte{nl.IPSET_PROTOCOL}))
		fill(c)
	})
}

// Names returns the names of all sets, sorted.
func Names(ctx context.Context) (names []string, err error) {
	const listNamesOnly = 1 << 1 // IPSET_FLAG_LIST_SETNAME
	if _, err := os.Stat("/sys/module"); err == nil {
		if _, err := os.Stat("/sys/module/ip_set"); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
	}
	sets, err := request(ctx, nl.IPSET_CMD_LIST, unix.NLM_F_DUMP,
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

// Destroy destroys a set. The error is [ErrBusy] if a rule refers to it.
func Destroy(ctx context.Context, name string) error {
	_, err := request(ctx, nl.IPSET_CMD_DESTROY, unix.NLM_F_ACK, func(c *netlink.Conn) { c.Text(nl.IPSET_ATTR_SETNAME, name) })
	return err
}
