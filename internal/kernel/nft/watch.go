package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// groupNFTables is the multicast group of all changes to nf_tables.
const groupNFTables = 7

// Watch listens to the changes that others make. What this connection itself
// commits is filtered out in the kernel, so that a large write of ours does not
// drown a small one of theirs. The kernel prepares events only while somebody
// listens, so the socket joins the group here.
func (c *Conn) Watch(ctx context.Context, tables []Table, missed func(), changed func(what string)) error {
	if err := membership(c.events, unix.NETLINK_ADD_MEMBERSHIP); err != nil {
		return fmt.Errorf("watch nf_tables: %w", err)
	}
	defer func() { _ = membership(c.events, unix.NETLINK_DROP_MEMBERSHIP) }()
	if !c.undisturbed() {
		missed()
	}
	stop := context.AfterFunc(ctx, func() { _ = c.events.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, dumpBytes)
	for {
		n, err := c.events.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			changed("changes were lost, there were more than could be read")
			continue
		case err != nil:
			return fmt.Errorf("watch nf_tables: %w", err)
		}
		if what := firstChange(buf[:n], tables); what != "" {
			changed(what)
		}
	}
}

// openEvents opens the socket on which others' changes arrive: here and not
// when it is used, so that it is in the same network namespace.
func openEvents(except uint32) (*os.File, error) {
	fd, _, err := dial()
	if err != nil {
		return nil, err
	}
	err = ignore(fd, except)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open netfilter events: %w", err)
	}
	return os.NewFile(uintptr(fd), "netfilter events"), nil
}

// membership joins or leaves the group of nf_tables' changes.
func membership(f *os.File, option int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var opt error
	err = raw.Control(func(fd uintptr) {
		opt = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, groupNFTables)
	})
	return errors.Join(err, opt)
}

// firstChange describes the first message that is about one of the tables.
func firstChange(b []byte, tables []Table) string {
	for m := range messages(b) {
		what := change(m.kind & 0xff)
		if m.kind>>8 != unix.NFNL_SUBSYS_NFTABLES || what == "" || len(m.body) < 4 {
			continue
		}
		// The table's name is the first attribute of every such message.
		t := Table{Family(m.body[0]), text(attribute(m.payload(), 1))}
		for _, ours := range tables {
			if t == ours {
				return fmt.Sprintf("%s in %v by port %d", what, t, m.port)
			}
		}
	}
	return ""
}

// change names a message that tells of a change; it is empty for any other.
func change(kind uint16) string {
	switch kind {
	case unix.NFT_MSG_NEWTABLE:
		return "table added"
	case unix.NFT_MSG_DELTABLE:
		return "table deleted"
	case unix.NFT_MSG_NEWCHAIN:
		return "chain added"
	case unix.NFT_MSG_DELCHAIN:
		return "chain deleted"
	case unix.NFT_MSG_NEWRULE:
		return "rule added"
	case unix.NFT_MSG_DELRULE:
		return "rule deleted"
	case unix.NFT_MSG_NEWSET:
		return "set added"
	case unix.NFT_MSG_DELSET:
		return "set deleted"
	case unix.NFT_MSG_NEWSETELEM:
		return "element added"
	case unix.NFT_MSG_DELSETELEM:
		return "element deleted"
	default:
		return ""
	}
}

// ignore makes a socket deaf to messages caused by a netlink port. The filter
// reads the port from the message's header, where it is in host order, while
// the filter's loads are in network order.
func ignore(fd int, port uint32) error {
	const portOffset = 12
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portOffset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: networkOrder(port), Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
}

// networkOrder returns the number whose bytes in network order are v's in host order.
func networkOrder(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}
