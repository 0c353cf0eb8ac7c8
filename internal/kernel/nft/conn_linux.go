package nft

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// messageBytes bounds one message of elements: an attribute's length has 16 bits.
const messageBytes = 48 << 10

// Conn is nf_tables of the network namespace it was opened in.
type Conn struct {
	events *netlink.Events

	mu sync.Mutex
	nl *netlink.Conn

	// Whether another process commits: the kernel numbers its rules, of all tables
	// together, and every commit that changes something adds one.
	first uint32 // the number before we read or wrote anything; 0, which the kernel skips: not known
	ours  uint32 // how many commits were ours since
}

// Open opens a connection to nf_tables of the calling thread's network namespace.
// A long listing keeps others from using it; they may open one of their own.
func Open() (*Conn, error) {
	nl, err := netlink.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	events, err := netlink.OpenEvents(unix.NETLINK_NETFILTER, nl.Port)
	if err != nil {
		return nil, errors.Join(err, nl.Close())
	}
	return &Conn{nl: nl, events: events}, nil
}

func (c *Conn) Close() error { return errors.Join(c.nl.Close(), c.events.Close()) }

// Commit sends the batch. Elements go many to a message; if the kernel refuses
// such a message, which undoes the batch, it is sent once more with one
// operation a message to learn which it was.
func (c *Conn) Commit(ctx context.Context, b *Batch) error {
	if len(b.Ops) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	err := c.commit(b, messageBytes)
	if _, refused := errors.AsType[*CommitError](err); refused && len(b.Ops) > 1 {
		err = c.commit(b, 0)
	}
	if err == nil {
		c.ours++
	}
	return err
}

func (c *Conn) commit(b *Batch, limit int) error {
	begin, firsts := encode(&c.nl.Builder, b, limit)
	if err := c.nl.Send(); err != nil {
		return fmt.Errorf("send batch of %d operations, %d bytes: %w", len(b.Ops), len(c.nl.Bytes()), err)
	}
	errs, err := c.nl.Answers()
	if err != nil {
		return fmt.Errorf("read answers: %w: %w", ErrUncertain, err)
	}
	// An error of the batch as a whole has the number of its first or last message.
	ce := &CommitError{}
	for i, first := range firsts {
		if err := errs[begin+1+uint32(i)]; err != nil {
			ce.Failures = append(ce.Failures, Failure{&b.Ops[first], err})
		}
	}
	if len(ce.Failures) > 0 {
		return ce
	}
	for _, err := range errs {
		return fmt.Errorf("commit %d operations: %w", len(b.Ops), err)
	}
	return nil
}

// begin notes the first generation, once.
func (c *Conn) begin() {
	if c.first == 0 {
		c.first, c.ours = c.generation(), 0
	}
}

// undisturbed reports whether all commits since begin were ours. It keeps us from
// committing meanwhile, which could hide a commit of another process.
func (c *Conn) undisturbed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first != 0 && c.generation() == c.first+c.ours
}

// generation asks for the number; it is 0 if the kernel does not say.
func (c *Conn) generation() (id uint32) {
	err := c.ask(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, 0, func(a netlink.Attrs) { id = uint32(a.Number(unix.NFTA_GEN_ID)) })
	if err != nil {
		return 0
	}
	return id
}

// ask asks about a table, and about a set in it, if they are named.
func (c *Conn) ask(kind, flags uint16, f Family, each func(netlink.Attrs), names ...string) error {
	c.nl.Request(subsystem|kind, flags, netlink.Netfilter(f, 0), names...)
	return c.nl.Ask(func(m netlink.Message) { each(m.Attrs()) })
}
