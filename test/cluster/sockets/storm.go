package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
)

// storm is what became of queries.
type storm struct {
	asked, lost         int
	races, insertFailed int // as conntrack of the node counts them: resolved, and lost
}

// patience is after how long a query counts as lost.
const patience = 300 * time.Millisecond

// measureStorm has pods ask a Service with several endpoints, two questions from
// one new socket at a time, as resolvers do for A and AAAA, on two processors.
func measureStorm(ctx context.Context, all []way, connected bool) (map[string]*storm, error) {
	const sockets = 250
	out := map[string]*storm{}
	for range *storms {
		for _, w := range all {
			if !w.through {
				continue
			}
			if out[w.name] == nil {
				out[w.name] = &storm{}
			}
			for _, client := range w.bed.clients {
				if err := w.storm(client, sockets, connected, out[w.name]); err != nil {
					return nil, fmt.Errorf("%s: %w", w.name, errors.Join(err, ctx.Err()))
				}
			}
			if err := w.bed.node.FlushConntrack(); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// storm opens sockets in a pod and asks from all of them.
func (w way) storm(client *lab.Host, n int, connected bool, out *storm) error {
	to := socketAddr(w.bed.several, udpPort)
	fds := make([]int, 0, n)
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	err := within(client, w.cgroup()).Do(func() error {
		for range n {
			fd, err := open(unix.SOCK_DGRAM, to, connected)
			if err != nil {
				return err
			}
			fds = append(fds, fd)
		}
		return nil
	})
	if err != nil {
		return err
	}
	before, err := clashes(w.bed.node)
	if err != nil {
		return err
	}
	if err := askTwice(fds, to, connected); err != nil {
		return err
	}
	answers, err := collect(fds, to)
	if err != nil {
		return err
	}
	after, err := clashes(w.bed.node)
	out.asked += 2 * n
	out.lost += 2*n - answers
	out.races += after.races - before.races
	out.insertFailed += after.insertFailed - before.insertFailed
	return err
}

// askTwice sends two questions from each socket at the same moment.
func askTwice(fds []int, to *unix.SockaddrInet4, connected bool) error {
	var ready [2]atomic.Int64
	var errs [2]error
	var both sync.WaitGroup
	for side := range ready {
		both.Go(func() {
			errs[side] = pin(side)
			for i, fd := range fds {
				ready[side].Store(int64(i + 1))
				for ready[1-side].Load() <= int64(i) {
				}
				if connected {
					_, err := unix.Write(fd, []byte{byte(side)})
					errs[side] = errors.Join(errs[side], err)
				} else {
					errs[side] = errors.Join(errs[side], unix.Sendto(fd, []byte{byte(side)}, 0, to))
				}
			}
		})
	}
	both.Wait()
	return errors.Join(errs[:]...)
}

// collect counts the answers that come from whom was asked.
func collect(fds []int, to *unix.SockaddrInet4) (n int, err error) {
	missing := map[int]int{}
	for _, fd := range fds {
		missing[fd] = 2
	}
	for end := time.Now().Add(patience); len(missing) > 0 && time.Now().Before(end); {
		var polls []unix.PollFd
		for fd := range missing {
			polls = append(polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(polls, int(time.Until(end)/time.Millisecond)+1); err != nil && err != unix.EINTR {
			return n, err
		}
		for _, p := range polls {
			var b [1]byte
			if p.Revents == 0 {
				continue
			}
			_, from, err := unix.Recvfrom(int(p.Fd), b[:], unix.MSG_DONTWAIT)
			if err != nil {
				continue
			}
			if sa, ok := from.(*unix.SockaddrInet4); !ok || sa.Addr != to.Addr || sa.Port != to.Port {
				continue // a resolver would not take it
			}
			n++
			if missing[int(p.Fd)]--; missing[int(p.Fd)] == 0 {
				delete(missing, int(p.Fd))
			}
		}
	}
	return n, nil
}

// clashes reads how often a node met two first packets of one connection.
func clashes(node *lab.Host) (sum storm, err error) {
	err = node.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		names := strings.Fields(lines[0])
		for _, line := range lines[1:] { // one for each processor
			for i, field := range strings.Fields(line) {
				n, err := strconv.ParseInt(field, 16, 64)
				switch {
				case err != nil:
					return err
				case names[i] == "clashres":
					sum.races += int(n)
				case names[i] == "insert_failed":
					sum.insertFailed += int(n)
				}
			}
		}
		return nil
	})
	return sum, err
}
