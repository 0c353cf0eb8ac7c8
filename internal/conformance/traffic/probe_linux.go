package traffic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// window is how many flows of one Probe are under way at once.
const window = 128

// resendTime is after how long a datagram is sent once more. A busy machine may
// lose one; TCP does the same by itself.
const resendTime = time.Second

// answerTime is how long a TCP connection may take to bring an answer.
const answerTime = 5 * time.Second

// Probe tries flows from the namespace, many at a time, and returns what became of
// each. An error means that the namespace itself is out of order.
func (n *Namespace) Probe(ctx context.Context, flows []Flow) ([]Seen, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	p := &prober{ns: n, epoll: ep, flows: flows, seen: make([]Seen, len(flows)), active: map[int32]*attempt{}}
	err = p.run(ctx)
	for _, a := range p.active {
		err = errors.Join(err, unix.Close(a.fd))
	}
	if err := errors.Join(err, unix.Close(ep)); err != nil {
		return nil, fmt.Errorf("probe from %s: %w", n.Name, err)
	}
	return p.seen, nil
}

// prober is one Probe.
type prober struct {
	ns     *Namespace
	epoll  int
	flows  []Flow
	next   int // the first flow not yet tried
	seen   []Seen
	active map[int32]*attempt
}

// attempt is one flow under way.
type attempt struct {
	Flow
	index    int
	fd       int
	port     uint16
	deadline time.Time
	resend   time.Time // when a datagram is sent once more
	extended bool      // the deadline is later, as there is a connection
	text     []byte    // of the answer so far
}

func (p *prober) run(ctx context.Context) error {
	events := make([]unix.EpollEvent, window)
	for p.next < len(p.flows) || len(p.active) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.next < len(p.flows) && len(p.active) < window {
			if err := p.ns.Do(p.fill); err != nil {
				return err
			}
		}
		n, err := unix.EpollWait(p.epoll, events, p.patience())
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for answers: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if a := p.active[e.Fd]; a != nil {
				if err := p.progress(a); err != nil {
					return err
				}
			}
		}
		if err := p.expire(); err != nil {
			return err
		}
	}
	return nil
}

// fill starts flows until the window is full. It runs inside the namespace.
func (p *prober) fill() error {
	for p.next < len(p.flows) && len(p.active) < window {
		a := &attempt{Flow: p.flows[p.next], index: p.next, fd: -1}
		p.next++
		a.deadline, a.resend = time.Now().Add(a.Patience), time.Now().Add(resendTime)
		seen, err := a.open(p.ns)
		if err != nil {
			return fmt.Errorf("open %v %v to %v: %w", a.Protocol, a.Src, a.Dst, err)
		}
		p.active[int32(a.fd)] = a
		if seen != nil {
			if err := p.finish(a, *seen); err != nil {
				return err
			}
			continue
		}
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLERR | unix.EPOLLHUP, Fd: int32(a.fd)}
		if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, a.fd, &e); err != nil {
			return fmt.Errorf("watch socket: %w", err)
		}
	}
	return nil
}

// progress looks at a flow that has something to say.
func (p *prober) progress(a *attempt) error {
	if seen := a.read(); seen != nil {
		return p.finish(a, *seen)
	}
	return nil
}

func (p *prober) finish(a *attempt, s Seen) error {
	p.seen[a.index] = s
	delete(p.active, int32(a.fd))
	return unix.Close(a.fd)
}

// patience returns how long to wait at most, in milliseconds rounded up.
func (p *prober) patience() int {
	if len(p.active) == 0 {
		return 0
	}
	wait := resendTime
	for _, a := range p.active {
		wait = min(wait, time.Until(a.deadline))
	}
	return int(max(0, wait)/time.Millisecond) + 1
}

// expire ends the flows whose time is over and sends datagrams once more.
func (p *prober) expire() error {
	now := time.Now()
	for _, a := range p.active {
		if now.Before(a.deadline) {
			if now.After(a.resend) {
				a.resend = now.Add(resendTime)
				_ = a.send() // an error of it shows when the socket is read
			}
			continue
		}
		if a.connected() && !a.extended {
			// Somebody took the connection, so it is not silence; the answer
			// itself depends on how busy this machine is.
			a.extended, a.deadline = true, now.Add(answerTime)
			continue
		}
		if err := p.finish(a, Seen{Fate: Silent}); err != nil {
			return err
		}
	}
	return nil
}
