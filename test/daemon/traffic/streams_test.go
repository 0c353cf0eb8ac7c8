package traffic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

const (
	beat     = 20 * time.Millisecond  // between two requests of a stream
	patience = 900 * time.Millisecond // less than TCP waits before it sends its first packet once more
)

// kind is how a client sends its requests.
type kind string

// The kinds.
const (
	fresh  kind = "new"     // each from a new port
	kept   kind = "kept"    // TCP: over one connection, until the pod closes it
	held   kind = "same"    // UDP: from one port, each answered
	oneWay kind = "one-way" // UDP: from one port, and nobody answers
)

// origin is where a client is. If it has no source, its sockets are not bound.
type origin struct {
	name string
	host *lab.Host
	src  netip.Addr
}

// stream is requests of one kind, one after the other.
type stream struct {
	id       int
	kind     kind
	protocol proxy.Protocol
	from     origin
	to       netip.AddrPort
	loose    bool // the socket of a datagram is not connected

	requests []request
	closed   int // connections that a pod closed in order
	cut      int // connected UDP sockets that mode ebpf told to connect again
}

func (st *stream) String() string {
	return fmt.Sprintf("%s %v from %s to %v", st.kind, st.protocol, st.from.name, st.to)
}

// request is what became of one.
type request struct {
	begun, ended time.Time
	traffic.Seen
	number int  // of a datagram that nobody answers
	open   bool // over a connection that was there before
}

// least is how many requests a stream sends, however slow the machine is.
func (st *stream) least() int {
	if st.protocol == proxy.SCTP {
		return 2 // a socket of it may miss that it is refused, and tries again after three seconds
	}
	return 5
}

// run sends requests until it is told to stop and has sent enough.
func (st *stream) run(ctx context.Context, stop <-chan struct{}) error {
	tick := time.NewTicker(traffic.Scaled(beat))
	defer tick.Stop()
	send, end := st.sender()
	defer end()
	for {
		r := request{begun: time.Now()}
		err := send(ctx, &r)
		if err != nil {
			return fmt.Errorf("%v: %w", st, err)
		}
		r.ended = time.Now()
		st.requests = append(st.requests, r)
		select {
		case <-stop:
			if len(st.requests) >= st.least() {
				return nil
			}
		case <-tick.C:
		}
	}
}

// sender returns how one request is sent. Its error means that none can be.
func (st *stream) sender() (send func(context.Context, *request) error, end func()) {
	c := &conversation{stream: st}
	return map[kind]func(context.Context, *request) error{
		fresh: st.probe, kept: c.overConnection, held: c.fromOnePort, oneWay: c.unanswered,
	}[st.kind], c.end
}

func (st *stream) probe(ctx context.Context, r *request) error {
	seen, err := st.from.host.Probe(ctx, []traffic.Flow{{
		Protocol: st.protocol, Src: st.from.src, Dst: st.to, Patience: patience,
		Socket: traffic.Socket{Unbound: !st.from.src.IsValid()},
	}})
	if err == nil {
		r.Seen = seen[0]
	}
	return err
}

// conversation is a stream whose requests share a socket.
type conversation struct {
	*stream
	conn   net.Conn
	lines  *bufio.Reader
	number int
	by     netip.AddrPort // who has the connection
}

func (c *conversation) end() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// dial makes the socket if there is none.
func (c *conversation) dial(ctx context.Context) (err error) {
	if c.conn != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, traffic.Scaled(patience))
	defer cancel()
	if !c.loose {
		c.conn, err = c.from.host.Dial(ctx, c.protocol, c.from.src, c.to)
	} else {
		err = c.from.host.Do(func() error {
			pc, err := net.ListenUDP("udp4", nil)
			c.conn = unconnected{pc, c.to}
			return err
		})
	}
	if err != nil {
		c.conn = nil
		return err
	}
	c.lines = bufio.NewReader(c.conn)
	return nil
}

// unconnected is a UDP socket that says with each datagram where it goes.
type unconnected struct {
	*net.UDPConn
	to netip.AddrPort
}

func (u unconnected) Write(b []byte) (int, error) { return u.WriteToUDPAddrPort(b, u.to) }

// ask sends one byte and reads one line.
func (c *conversation) ask() (line string, err error) {
	if err = c.conn.SetDeadline(time.Now().Add(traffic.Scaled(patience))); err != nil {
		return "", err
	}
	if _, err = c.conn.Write([]byte("?")); err != nil {
		return "", err
	}
	return c.lines.ReadString('\n')
}

// seen is what an error of a socket means.
func seen(err error) traffic.Seen {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return traffic.Seen{Fate: traffic.Refused}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return traffic.Seen{Fate: traffic.Silent}
	default:
		return traffic.Seen{Fate: traffic.Broken, Err: err}
	}
}

// answered reads who answered.
func answered(line string) (traffic.Seen, string) {
	by, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	at, err := netip.ParseAddrPort(by)
	if err != nil {
		return traffic.Seen{Fate: traffic.Broken, Err: err}, rest
	}
	return traffic.Seen{Fate: traffic.Answered, Answer: traffic.Answer{By: at}}, rest
}

// overConnection asks over a connection that lasts. Whoever answered first must
// answer always.
func (c *conversation) overConnection(ctx context.Context, r *request) error {
	r.open = c.conn != nil
	if err := c.dial(ctx); err != nil {
		r.Seen = seen(err)
		return nil
	}
	line, err := c.ask()
	if err != nil {
		r.Seen = seen(err)
		c.end()
		return nil
	}
	var word string
	if r.Seen, word = answered(line); r.open && r.By != c.by {
		r.Seen = traffic.Seen{Fate: traffic.Broken, Err: fmt.Errorf("%v answers for %v", r.By, c.by)}
	}
	if c.by = r.By; word == leaves {
		c.closed++
		c.end()
	}
	return nil
}

// fromOnePort asks by datagrams of one flow.
func (c *conversation) fromOnePort(ctx context.Context, r *request) error {
	r.open = c.conn != nil
	if err := c.dial(ctx); err != nil {
		return err
	}
	line, err := c.ask()
	if r.open && c.wasCut(err) {
		return c.fromOnePort(ctx, r)
	}
	if err == nil {
		r.Seen, _ = answered(line)
	} else {
		r.Seen = seen(err)
	}
	return nil
}

// wasCut reports whether the socket is to be made anew: mode ebpf does not let a connected
// one speak to an endpoint that is gone.
func (c *conversation) wasCut(err error) bool {
	if !errors.Is(err, unix.EPERM) || c.loose {
		return false
	}
	c.cut++
	c.end()
	return true
}

// unanswered sends a datagram. An error that an earlier one met is not its own.
func (c *conversation) unanswered(ctx context.Context, r *request) error {
	old := c.conn != nil
	r.open, r.Fate = true, traffic.Silent
	if err := c.dial(ctx); err != nil {
		return err
	}
	c.number++
	r.number = c.number
	text := fmt.Appendf(nil, "%d %d", c.id, c.number)
	_, err := c.conn.Write(text)
	if errors.Is(err, unix.ECONNREFUSED) {
		_, err = c.conn.Write(text)
	}
	if old && c.wasCut(err) {
		c.number--
		return c.unanswered(ctx, r)
	}
	return nil // what was not sent did not arrive
}

// startStreams sends all streams until what it returns is called.
func startStreams(t *testing.T, streams []*stream) (stop func()) {
	t.Helper()
	end := make(chan struct{})
	var running sync.WaitGroup
	for i, st := range streams {
		st.id = i
		running.Go(func() {
			if err := st.run(t.Context(), end); err != nil {
				t.Error(err)
			}
		})
	}
	return func() {
		close(end)
		running.Wait()
	}
}
