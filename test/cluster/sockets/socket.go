package main

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/traffic"
)

// use is one way to use sockets. It returns what to do again and again, and what
// at the end. A byte goes there and comes back.
type use struct {
	name  string
	fresh bool   // each step begins a flow
	port  uint16 // of the Service
	begin func(to *unix.SockaddrInet4) (step func() error, end func() error, err error)
}

var uses = []use{
	{"new TCP connection, a byte each way, closed", true, newPort, eachTime(unix.SOCK_STREAM, true)},
	{"round trip of an open TCP connection", false, openPort, once(unix.SOCK_STREAM, true)},
	{"a megabyte over an open TCP connection", false, bulkPort, megabytes},
	{"UDP query, new connected socket", true, udpPort, eachTime(unix.SOCK_DGRAM, true)},
	{"UDP query, new socket that is not connected", true, udpPort, eachTime(unix.SOCK_DGRAM, false)},
	{"UDP query, open socket that is not connected", false, udpPort, once(unix.SOCK_DGRAM, false)},
}

// once opens a socket for all steps, eachTime one for each.
func once(kind int, connected bool) func(*unix.SockaddrInet4) (func() error, func() error, error) {
	return func(to *unix.SockaddrInet4) (func() error, func() error, error) {
		fd, err := open(kind, to, connected)
		return func() error { return query(fd, to, connected) }, func() error { return unix.Close(fd) }, err
	}
}

func eachTime(kind int, connected bool) func(*unix.SockaddrInet4) (func() error, func() error, error) {
	step := func(to *unix.SockaddrInet4) error {
		fd, err := open(kind, to, connected)
		if err != nil {
			return err
		}
		err = query(fd, to, connected)
		return errors.Join(err, unix.Close(fd))
	}
	return func(to *unix.SockaddrInet4) (func() error, func() error, error) {
		return func() error { return step(to) }, func() error { return nil }, nil
	}
}

// megabytes sends one at a time, and waits until it was read.
func megabytes(to *unix.SockaddrInet4) (func() error, func() error, error) {
	fd, err := open(unix.SOCK_STREAM, to, true)
	block := make([]byte, megabyte)
	step := func() error {
		for rest := block; len(rest) > 0; {
			n, err := again(func() (int, error) { return unix.Write(fd, rest) })
			if err != nil {
				return fmt.Errorf("send: %w", err)
			}
			rest = rest[n:]
		}
		n, err := again(func() (int, error) { return unix.Read(fd, block[:1]) })
		if err != nil || n != 1 {
			return fmt.Errorf("receive %d bytes: %w", n, err)
		}
		return nil
	}
	return step, func() error { return unix.Close(fd) }, err
}

// open makes a socket; closing it leaves nothing behind, so that ports suffice.
func open(kind int, to *unix.SockaddrInet4, connected bool) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	if kind == unix.SOCK_STREAM {
		err = errors.Join(err, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
			unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1))
	}
	if connected {
		err = errors.Join(err, unix.Connect(fd, to))
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// query sends a byte and waits for the answer, which must come from whom was asked.
func query(fd int, to *unix.SockaddrInet4, connected bool) error {
	var b [1]byte
	if connected {
		if _, err := unix.Write(fd, b[:]); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		n, err := again(func() (int, error) { return unix.Read(fd, b[:]) })
		if err != nil || n != 1 {
			return fmt.Errorf("receive %d bytes: %w", n, err)
		}
		return nil
	}
	if err := unix.Sendto(fd, b[:], 0, to); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	var from unix.Sockaddr
	_, err := again(func() (n int, err error) { n, from, err = unix.Recvfrom(fd, b[:], 0); return n, err })
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if sa, ok := from.(*unix.SockaddrInet4); !ok || sa.Addr != to.Addr || sa.Port != to.Port {
		return fmt.Errorf("the answer came from %+v", from)
	}
	return nil
}

// again repeats what a signal of the Go runtime interrupted.
func again(f func() (int, error)) (n int, err error) {
	for n, err = f(); err == unix.EINTR; n, err = f() {
	}
	return n, err
}

// The ports of the Service are those of its endpoints.
const (
	newPort  = 80 // each connection brings a byte
	openPort = 81 // connections stay
	bulkPort = 82 // they bring a megabyte at a time
	udpPort  = 53
)

const megabyte = 1 << 20

// serve answers bytes on all ports of a namespace, on a processor.
func serve(n *traffic.Namespace, cpu int) error {
	var stream, lasting, bulk, datagrams int
	err := n.Do(func() (err error) {
		if stream, err = listener(unix.SOCK_STREAM, newPort); err != nil {
			return err
		}
		if lasting, err = listener(unix.SOCK_STREAM, openPort); err != nil {
			return err
		}
		if bulk, err = listener(unix.SOCK_STREAM, bulkPort); err != nil {
			return err
		}
		datagrams, err = listener(unix.SOCK_DGRAM, udpPort)
		return err
	})
	if err != nil {
		return fmt.Errorf("listen in %s: %w", n.Name, err)
	}
	accept := func(ln int) (int, error) {
		return again(func() (int, error) { fd, _, err := unix.Accept4(ln, unix.SOCK_CLOEXEC); return fd, err })
	}
	// They end with the program.
	go forever(cpu, func() {
		if fd, err := accept(stream); err == nil {
			echo(fd)
		}
	})
	go forever(cpu, func() {
		if fd, err := accept(lasting); err == nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1)
			go func() {
				_ = pin(cpu)
				echo(fd)
			}()
		}
	})
	go forever(cpu, func() {
		if fd, err := accept(bulk); err == nil {
			swallow(fd)
		}
	})
	go forever(cpu, func() {
		var b [1]byte
		if _, from, err := unix.Recvfrom(datagrams, b[:], 0); err == nil {
			_ = unix.Sendto(datagrams, b[:], 0, from)
		}
	})
	return nil
}

// pin keeps the goroutine on a thread of its own, and that on a processor, before
// whatever else wants to run there.
func pin(cpu int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	first := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	return errors.Join(unix.SchedSetaffinity(0, &set), unix.SchedSetAttr(0, &first, 0))
}

func forever(cpu int, f func()) {
	for _ = pin(cpu); ; {
		f()
	}
}

func listener(kind, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port})
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, 1024)
	}
	return fd, err
}

// echo answers what a connection brings until the client closes it.
func echo(fd int) {
	var b [1]byte
	for {
		n, err := again(func() (int, error) { return unix.Read(fd, b[:]) })
		if err != nil || n == 0 {
			_ = unix.Close(fd)
			return
		}
		_, _ = unix.Write(fd, b[:])
	}
}

// swallow answers each megabyte of a connection with a byte until the client closes it.
func swallow(fd int) {
	b := make([]byte, 1<<16)
	for got := 0; ; {
		n, err := again(func() (int, error) { return unix.Read(fd, b) })
		if err != nil || n == 0 {
			_ = unix.Close(fd)
			return
		}
		if got += n; got >= megabyte {
			got -= megabyte
			_, _ = unix.Write(fd, b[:1])
		}
	}
}

func socketAddr(a netip.Addr, port uint16) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
}
