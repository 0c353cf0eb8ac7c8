package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Conn is a connection to IPVS in the network namespace where it was opened.
type Conn struct {
	conn   *netlink.Conn
	family uint16
}

// batchBytes bounds a batch, so that it fits the default socket buffer.
const batchBytes = 128 << 10

// Open connects to IPVS in the calling thread's network namespace. The error is
// [ErrMissing] if the kernel has no IPVS. Open looks for it in the list of all generic
// netlink families, because a request by name may load the module.
func Open() (*Conn, error) {
	conn, err := netlink.Open(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	c := &Conn{conn: conn}
	conn.Request(unix.GENL_ID_CTRL, unix.NLM_F_DUMP, [4]byte{unix.CTRL_CMD_GETFAMILY, 1})
	err = conn.Ask(func(m netlink.Message) {
		if a := m.Attrs(); a.Text(unix.CTRL_ATTR_FAMILY_NAME) == familyName {
			c.family = uint16(native(a.Get(unix.CTRL_ATTR_FAMILY_ID)))
		}
	})
	if err == nil && c.family != 0 {
		return c, nil
	}
	return nil, errors.Join(cmp.Or(err, ErrMissing), conn.Close())
}

// Close closes the socket.
func (c *Conn) Close() error { return c.conn.Close() }

// list dumps all objects of a kind, or those of one virtual server if of is not zero.
func (c *Conn) list(ctx context.Context, command byte, of Server) (all []netlink.Attrs, err error) {
	err = netlink.RetryInterrupted(ctx, netlink.Attempts, func() error {
		all = nil
		c.conn.Request(c.family, unix.NLM_F_DUMP, [4]byte{command, version})
		if of.Addr.IsValid() {
			encodeServer(&c.conn.Builder, of, nil)
		}
		return c.conn.Ask(func(m netlink.Message) { all = append(all, slices.Clone(m.Attrs())) })
	})
	if err != nil {
		return nil, fmt.Errorf("list IPVS servers: %w", err)
	}
	return all, nil
}

// listServers lists all virtual servers until two listings in a row have the same ones.
// The kernel has those of all network namespaces in one table and continues a listing
// at a position there, so a change in any namespace can make it skip servers, and
// nothing in the answer says so.
func (c *Conn) listServers(ctx context.Context) (all map[Server]netlink.Attrs, err error) {
	err = netlink.RetryInterrupted(ctx, netlink.Attempts, func() error {
		previous := all
		answers, err := c.list(ctx, getService, Server{})
		if err != nil {
			return err
		}
		all = make(map[Server]netlink.Attrs, len(answers))
		for _, a := range answers {
			if s, _, ok := decodeServer(a); ok {
				all[s] = a
			}
		}
		if !maps.EqualFunc(previous, all, func(_, _ netlink.Attrs) bool { return true }) {
			return fmt.Errorf("list IPVS servers: %w", netlink.ErrInterrupted)
		}
		return nil
	})
	return all, err
}

// Servers implements [Interface].
func (c *Conn) Servers(ctx context.Context) (map[Server]Settings, error) {
	answers, err := c.listServers(ctx)
	all := map[Server]Settings{}
	for s, a := range answers {
		_, all[s], _ = decodeServer(a)
	}
	return all, err
}

// Server implements [Interface].
func (c *Conn) Server(ctx context.Context, s Server) (settings Settings, found bool, err error) {
	err = netlink.RetryInterrupted(ctx, netlink.Attempts, func() error {
		found = false
		c.conn.Request(c.family, unix.NLM_F_ACK, [4]byte{getService, version})
		encodeServer(&c.conn.Builder, s, nil)
		return c.conn.Ask(func(m netlink.Message) {
			is, with, ok := decodeServer(m.Attrs())
			settings, found = with, ok && is == s
		})
	})
	switch {
	case errors.Is(err, unix.ESRCH):
		return Settings{}, false, nil
	case err != nil:
		return Settings{}, false, fmt.Errorf("find %v: %w", s, err)
	}
	return settings, found, nil
}

// Counted implements [Interface].
func (c *Conn) Counted(ctx context.Context) (map[Server]Stats, error) {
	answers, err := c.listServers(ctx)
	all := map[Server]Stats{}
	for s, a := range answers {
		all[s] = decodeStats(a.Get(attrService))
	}
	return all, err
}

// Reals implements [Interface].
func (c *Conn) Reals(ctx context.Context, s Server) (all []RealState, err error) {
	answers, err := c.list(ctx, getReal, s)
	for _, a := range answers {
		if r, ok := decodeReal(a, s.Addr.Addr().Is4()); ok {
			all = append(all, r)
		}
	}
	return all, err
}

// Do sends operations in batches, and reads the errors after each.
func (c *Conn) Do(ctx context.Context, ops []Op) (map[int]error, error) {
	refused := map[int]error{}
	for from := 0; from < len(ops); {
		if err := ctx.Err(); err != nil {
			return refused, err
		}
		first, last := from, uint32(0) // last is the sequence number of the batch's last operation
		c.conn.Reset()
		for ; from < len(ops) && len(c.conn.Bytes()) < batchBytes; from++ {
			o := &ops[from]
			last = c.conn.Begin(c.family, 0, [4]byte{o.command(), version})
			o.encode(&c.conn.Builder)
		}
		if err := c.conn.Send(); err != nil {
			return refused, fmt.Errorf("send %d IPVS operations: %w", from-first, err)
		}
		errs, err := c.conn.Answers()
		if err != nil {
			return refused, fmt.Errorf("read the answers to %d IPVS operations: %w", from-first, err)
		}
		for seq, err := range errs {
			if at := from - 1 - int(last-seq); at >= first {
				refused[at] = fmt.Errorf("%v: %w", ops[at], err)
			}
		}
	}
	return refused, nil
}

// SetTimeouts implements [Interface].
func (c *Conn) SetTimeouts(_ context.Context, t Timeouts) error {
	c.conn.Request(c.family, unix.NLM_F_ACK, [4]byte{setConfig, version})
	for i, d := range []time.Duration{t.TCP, t.TCPFin, t.UDP} {
		if d > 0 {
			number(&c.conn.Builder, attrTimeoutTCP+uint16(i), uint32(max(d/time.Second, 1)))
		}
	}
	if err := c.conn.Ask(func(netlink.Message) {}); err != nil {
		return fmt.Errorf("set IPVS timeouts: %w", err)
	}
	return nil
}
