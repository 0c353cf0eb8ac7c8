package nft

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// messageBytes bounds a message with elements: the length of an attribute has 16 bits.
const messageBytes = 48 << 10

// Conn is a connection to nf_tables of one network namespace. Any goroutine may use it: methods
// wait for each other, except for Watch and Trace. These share a socket, so only one of them
// may run at a time, and neither can be called again after its context has ended.
type Conn struct {
	events *netlink.Events

	mu sync.Mutex
	nl *netlink.Conn

	// These two tell whether another process has committed something: the kernel has one
	// generation number for all tables, and every commit that changes something
	// increments it.
	firstGeneration uint32 // before we read or wrote anything; 0, which the kernel never uses, if unknown
	ownCommits      uint32 // our commits since then
}

// Open opens a connection to nf_tables of the calling thread's network namespace. A caller
// that must not wait for long listings of others opens its own connection.
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

// Close closes the connection. The kernel deletes the tables that the connection owns.
func (c *Conn) Close() error { return errors.Join(c.nl.Close(), c.events.Close()) }

// Commit implements [Interface]. A message holds many elements; if the kernel refuses a
// message, and with it the batch, the batch is sent again with one operation per message to
// find out which operations it refuses.
func (c *Conn) Commit(ctx context.Context, b *Batch) error {
	if len(b.Ops) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordGeneration()
	err := c.commit(b, messageBytes)
	if _, refused := errors.AsType[*CommitError](err); refused && len(b.Ops) > 1 {
		err = c.commit(b, 0)
	}
	if err == nil {
		c.ownCommits++
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
	// An error that concerns the whole batch has the number of its first or last message.
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

// recordGeneration records the generation before the first use of the connection.
func (c *Conn) recordGeneration() {
	if c.firstGeneration == 0 {
		c.firstGeneration, c.ownCommits = c.generation(), 0
	}
}

// onlyOwnCommits reports whether all commits since recordGeneration were ours; false if that
// is not known. It holds the lock, because a commit of ours meanwhile could hide one of another
// process.
func (c *Conn) onlyOwnCommits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.firstGeneration != 0 && c.generation() == c.firstGeneration+c.ownCommits
}

// generation returns the current generation; 0 if it cannot be read.
func (c *Conn) generation() (id uint32) {
	err := c.ask(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, 0, func(a netlink.Attrs) { id = uint32(a.Number(unix.NFTA_GEN_ID)) })
	if err != nil {
		return 0
	}
	return id
}

// ask sends a request and calls each with every message of the answer. The names are that of
// a table and, optionally, of a set or chain in it.
func (c *Conn) ask(kind, flags uint16, f Family, each func(netlink.Attrs), names ...string) error {
	c.nl.Request(subsystem|kind, flags, netlink.Netfilter(f, 0), names...)
	return c.nl.Ask(func(m netlink.Message) { each(m.Attrs()) })
}
