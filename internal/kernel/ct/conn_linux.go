package ct

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// dumpTries is how often an interrupted dump is tried before it is reported as incomplete.
const dumpTries = 5

// Conn is the connection tracking of the network namespace that it was opened in.
type Conn struct {
	nl     *netlink.Conn
	plain  bool // the kernel refused to filter by protocol
	parsed int  // messages of dumps that were decoded, for tests
}

// Open opens a connection to the connection tracking of the calling thread's network namespace. The
// connection stays in that namespace, whichever thread uses it.
func Open() (*Conn, error) {
	nl, err := netlink.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return &Conn{nl: nl}, nil
}

func (c *Conn) Close() error { return c.nl.Close() }

// Dump implements [Interface]. It starts over if the kernel reports that the dump was interrupted.
func (c *Conn) Dump(ctx context.Context, f Filter, keep func(*Flow) bool) (flows []Flow, err error) {
	err = netlink.RetryInterrupted(ctx, dumpTries, func() (err error) {
		flows, err = c.dump(f, !c.plain, keep)
		if !c.plain && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) { // perhaps because of the filter
			flows, err = c.dump(f, false, keep)
			c.plain = err == nil
		}
		return err
	})
	switch {
	case errors.Is(err, netlink.ErrInterrupted):
		return flows, fmt.Errorf("dump %v flows: %w: %w", f, ErrIncomplete, err)
	case err != nil:
		return nil, fmt.Errorf("dump %v flows: %w", f, err)
	default:
		return flows, nil
	}
}

// dump dumps once. A flow that cannot be decoded makes the dump incomplete.
func (c *Conn) dump(f Filter, filtered bool, keep func(*Flow) bool) ([]Flow, error) {
	c.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, f.IPv6)
	if filtered {
		encodeFilter(&c.nl.Builder, f)
	}
	var flows []Flow
	var flow Flow
	malformed := 0
	err := c.nl.Ask(func(m netlink.Message) {
		if f.full(len(flows)) {
			return
		}
		c.parsed++
		if !decode(m.Attrs(), &flow) {
			malformed++
		} else if f.Matches(&flow) && keep(&flow) {
			flows = append(flows, flow)
		}
	})
	if err == nil && malformed > 0 {
		err = fmt.Errorf("%w: %d flows cannot be decoded", netlink.ErrInterrupted, malformed)
	}
	return flows, err
}

// Each implements [Interface]. The kernel walks its table once, for both families.
func (c *Conn) Each(ctx context.Context, begin func(), each func(*Flow)) error {
	var flow Flow
	err := netlink.RetryInterrupted(ctx, dumpTries, func() error {
		begin()
		c.nl.Request(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, netlink.Netfilter(0, 0))
		// Linux 6.1 filters by the mask; 5.10 ignores it and sends every flow.
		c.nl.U32(nl.CTA_STATUS, statusDstNAT)
		c.nl.U32(statusMask, statusDstNAT)
		return c.nl.Ask(func(m netlink.Message) {
			c.parsed++
			if decode(m.Attrs(), &flow) && flow.Translated {
				each(&flow)
			}
		})
	})
	if err != nil {
		return fmt.Errorf("dump translated flows: %w", err)
	}
	return nil
}

// Delete implements [Interface]. It identifies the flow by its original tuple and its ID.
func (c *Conn) Delete(ctx context.Context, f *Flow) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, f.Orig.Dst.Addr().Is6())
	encodeFlow(&c.nl.Builder, f)
	err := c.nl.Ask(func(netlink.Message) {})
	switch {
	case errors.Is(err, unix.ENOENT):
		return ErrNotFound
	case err != nil:
		return fmt.Errorf("delete flow %v: %w", f, err)
	default:
		return nil
	}
}

// Find returns the mark of the flow that a packet with a source and destination would belong to, and
// [ErrNotFound] if there is none.
func (c *Conn) Find(protocol uint8, t Tuple) (mark uint32, err error) {
	c.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK, t.Dst.Addr().Is6())
	encodeTuple(&c.nl.Builder, nl.CTA_TUPLE_ORIG, protocol, t) // the kernel finds replies by it, too
	err = c.nl.Ask(func(m netlink.Message) { mark = uint32(m.Attrs().Number(nl.CTA_MARK)) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, ErrNotFound
	case err != nil:
		return 0, fmt.Errorf("find the flow of %v -> %v: %w", t.Src, t.Dst, err)
	default:
		return mark, nil
	}
}

func (c *Conn) request(kind, flags uint16, ipv6 bool) {
	family := netlink.IPv4
	if ipv6 {
		family = netlink.IPv6
	}
	c.nl.Request(unix.NFNL_SUBSYS_CTNETLINK<<8|kind, flags, netlink.Netfilter(family, 0))
}
