package traffic

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// The ports of a pod, one for each kind of traffic.
const (
	answerPort = 8080 // TCP, UDP and SCTP: one answer to each connection or datagram
	keptPort   = 8081 // TCP: a connection lasts, and each byte of it is answered
	oneWayPort = 8081 // UDP: nothing is answered
)

// pod is an endpoint with a server for each kind of traffic.
type pod struct {
	addr   netip.Addr
	here   bool // on this node
	closes []func() error
}

// podHosts are the namespaces of pods: one plays all pods of this node, another all of another
// node. An address is one pod, and is never used again.
type podHosts struct {
	here, there *lab.Host
	used        int
	arrivals    *arrivals
}

// maxPods is how many pods there may be in a test, on each of two nodes.
const maxPods = 60

func newPodHosts(l *lab.Lab) (*podHosts, error) {
	h := &podHosts{arrivals: &arrivals{at: map[datagram]arrival{}}}
	var addrs [2][]netip.Addr
	for i := range maxPods {
		for node := range addrs {
			addrs[node] = append(addrs[node], podAddr(i, node == 0))
		}
	}
	var err, err2 error
	h.here, err = l.AddPod("here", addrs[0]...)
	h.there, err2 = l.AddRemotePod("there", addrs[1]...)
	return h, errors.Join(err, err2)
}

func podAddr(i int, here bool) netip.Addr {
	if here {
		return netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i)})
	}
	return netip.AddrFrom4([4]byte{10, 0, 1, byte(100 + i)})
}

// add starts one more pod, by turns on this node and on the other.
func (h *podHosts) add() (*pod, error) {
	p := &pod{addr: podAddr(h.used/2, h.used%2 == 0), here: h.used%2 == 0}
	h.used++
	return p, errors.Join(p.listen(h, answerPort), p.keep(h), p.swallow(h))
}

func (h *podHosts) of(p *pod) *lab.Host {
	if p.here {
		return h.here
	}
	return h.there
}

// listen answers each connection and datagram to a port once.
func (p *pod) listen(h *podHosts, port uint16) error {
	for _, protocol := range []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP} {
		ln, err := h.of(p).Listen(protocol, netip.AddrPortFrom(p.addr, port))
		if err != nil {
			return err
		}
		p.closes = append(p.closes, ln.Close)
	}
	return nil
}

// close ends the pod. A server that stops in order tells the clients of its open
// connections with its next answer, as HTTP does by "Connection: close".
func (p *pod) close() (err error) {
	for _, c := range p.closes {
		err = errors.Join(err, c())
	}
	p.closes = nil
	return err
}

// The words that follow the address in an answer over a kept connection.
const stays, leaves = "stays", "leaves"

// keep serves connections that last.
func (p *pod) keep(h *podHosts) error {
	at := netip.AddrPortFrom(p.addr, keptPort)
	var ln net.Listener
	if err := h.of(p).Do(func() (err error) {
		ln, err = net.Listen("tcp", at.String())
		return err
	}); err != nil {
		return err
	}
	ending := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() { answerKept(c, at, ending) })
		}
	})
	p.closes = append(p.closes, func() error {
		close(ending)
		err := ln.Close()
		running.Wait()
		return err
	})
	return nil
}

// answerKept answers until it is told to end or nothing was asked for long.
func answerKept(c net.Conn, at netip.AddrPort, ending <-chan struct{}) {
	defer c.Close()
	asked := bufio.NewReader(c)
	for word := stays; word == stays; {
		if err := c.SetDeadline(time.Now().Add(traffic.Scaled(5 * time.Second))); err != nil {
			return
		}
		if _, err := asked.ReadByte(); err != nil {
			return
		}
		select {
		case <-ending:
			word = leaves
		default:
		}
		if _, err := fmt.Fprintf(c, "%v %s\n", at, word); err != nil {
			return
		}
	}
}

// datagram is one of a stream that nobody answers.
type datagram struct{ stream, number int }

// arrival is who got a datagram, and when.
type arrival struct {
	by netip.AddrPort
	at time.Time
}

// arrivals are those of all pods.
type arrivals struct {
	mu sync.Mutex
	at map[datagram]arrival
}

func (a *arrivals) add(d datagram, got arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[d] = got
}

func (a *arrivals) of(d datagram) (arrival, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	got, ok := a.at[d]
	return got, ok
}

// swallow takes datagrams and answers none of them.
func (p *pod) swallow(h *podHosts) error {
	at := netip.AddrPortFrom(p.addr, oneWayPort)
	var pc *net.UDPConn
	if err := h.of(p).Do(func() (err error) {
		pc, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	}); err != nil {
		return err
	}
	p.closes = append(p.closes, pc.Close)
	go func() {
		for {
			buf := make([]byte, 64)
			n, err := pc.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var d datagram
			if _, err := fmt.Sscan(string(buf[:n]), &d.stream, &d.number); err == nil {
				h.arrivals.add(d, arrival{at, time.Now()})
			}
		}
	}()
	return nil
}
