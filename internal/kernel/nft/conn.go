package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// messageBytes bounds one message of elements: an attribute's length has 16 bits.
	messageBytes = 48 << 10
	// bufferBytes is asked for both ways, so that a batch fits and its errors too.
	bufferBytes = 64 << 20
	// dumpBytes is more than the kernel puts into one message of a listing.
	dumpBytes = 256 << 10
)

// Conn is nf_tables of the network namespace it was opened in.
type Conn struct {
	fd     int
	port   uint32
	events *os.File

	mu          sync.Mutex
	enc         encoder
	recv        []byte
	generations generations
}

var _ Interface = (*Conn)(nil)

// Open opens a connection to nf_tables of the calling thread's network namespace.
func Open() (*Conn, error) {
	fd, port, err := dial()
	if err != nil {
		return nil, err
	}
	events, err := openEvents(port)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Conn{fd: fd, port: port, events: events, recv: make([]byte, dumpBytes)}, nil
}

// OpenReader opens a connection that is for listing only, so that a long listing
// does not keep another one from writing.
func OpenReader() (*Conn, error) {
	fd, port, err := dial()
	if err != nil {
		return nil, err
	}
	return &Conn{fd: fd, port: port, recv: make([]byte, dumpBytes)}, nil
}

// dial opens a netlink socket with large buffers.
func dial() (fd int, port uint32, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, 0, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	for opt, plain := range map[int]int{unix.SO_SNDBUFFORCE: unix.SO_SNDBUF, unix.SO_RCVBUFFORCE: unix.SO_RCVBUF} {
		// Without CAP_NET_ADMIN over the host the limits of the system hold.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, bufferBytes) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, bufferBytes)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return 0, 0, fmt.Errorf("bind netfilter netlink socket: %w", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return 0, 0, fmt.Errorf("name netfilter netlink socket: %w", err)
	}
	return fd, sa.(*unix.SockaddrNetlink).Pid, nil
}

// Close releases the sockets.
func (c *Conn) Close() error {
	err := unix.Close(c.fd)
	if c.events != nil {
		err = errors.Join(err, c.events.Close())
	}
	return err
}

// span is the operations that one message carries.
type span struct {
	seq   uint32
	first int
	count int
}

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
	var refused *CommitError
	if errors.As(err, &refused) && len(b.Ops) > 1 {
		err = c.commit(b, 0)
	}
	if err == nil {
		c.generations.ours++
	}
	return err
}

func (c *Conn) commit(b *Batch, limit int) error {
	spans := c.encode(b, limit)
	if c.enc.err != nil {
		return c.enc.err
	}
	if err := unix.Sendto(c.fd, c.enc.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send batch of %d operations, %d bytes: %w", len(b.Ops), len(c.enc.buf), err)
	}
	errs, err := c.answers()
	if err != nil || len(errs) == 0 {
		return err
	}
	return commitError(b, spans, errs)
}

// encode writes the batch into the buffer, elements of at most limit bytes a message.
func (c *Conn) encode(b *Batch, limit int) []span {
	e := &c.enc
	e.reset()
	e.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.end()
	spans := make([]span, 0, len(b.Ops)/64+8)
	for i := 0; i < len(b.Ops); {
		op := &b.Ops[i]
		n := 1
		var seq uint32
		if op.Kind == AddElement || op.Kind == DeleteElement {
			n = run(b.Ops[i:], limit)
			seq = e.elements(b.Ops[i : i+n])
		} else {
			seq = e.op(op)
		}
		spans = append(spans, span{seq, i, n})
		i += n
	}
	e.begin(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.end()
	return spans
}

// run returns how many operations from the first on fit one message with it.
func run(ops []Op, limit int) int {
	bytes := elementBytes(&ops[0].Element)
	for n := 1; n < len(ops); n++ {
		bytes += elementBytes(&ops[n].Element)
		if ops[n].Kind != ops[0].Kind || ops[n].Set != ops[0].Set || bytes > limit {
			return n
		}
	}
	return len(ops)
}

// answers reads what the kernel had to say to a batch. It has said all when
// sending returns; silence is consent.
func (c *Conn) answers() (map[uint32]error, error) {
	errs := map[uint32]error{}
	for {
		n, _, err := unix.Recvfrom(c.fd, c.recv, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN:
			return errs, nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, fmt.Errorf("read answers: %w: %w", ErrUncertain, err)
		}
		for m := range messages(c.recv[:n]) {
			if m.kind != unix.NLMSG_ERROR || len(m.body) < 4 {
				continue
			}
			if code := int32(binary.NativeEndian.Uint32(m.body)); code != 0 {
				errs[m.seq] = syscall.Errno(-code)
			}
		}
	}
}

// commitError attributes errors to operations. An error of the batch as a
// whole has the number of its first or last message.
func commitError(b *Batch, spans []span, errs map[uint32]error) error {
	ce := &CommitError{}
	for _, s := range spans {
		if err := errs[s.seq]; err != nil {
			ce.Failures = append(ce.Failures, Failure{&b.Ops[s.first], err})
			delete(errs, s.seq)
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
