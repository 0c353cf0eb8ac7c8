package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// turnName is a socket that one daemon of a network namespace has. The rules are of the
// namespace too, whatever the file systems and containers of those who write them.
const turnName = "@sluice-daemon"

const (
	// turnTries is how often to try when the name is taken and nobody answers there,
	// as at the moment when one daemon ends or begins.
	turnTries = 10
	turnPause = 50 * time.Millisecond

	// turnGreeting is how long a daemon that runs has to say who it is.
	turnGreeting = time.Second
)

// turn is the right of one daemon to write the rules.
type turn struct {
	name string
	self string // what others are told of this daemon
}

// errNoDaemon says that somebody else has the name.
var errNoDaemon = errors.New("its owner is no daemon of ours")

// await returns when no other daemon writes the rules of this network namespace, or
// ctx has ended. Two at once would undo what each other writes, or both translate. The one
// that runs gives its turn back when it has written for the last time, so that its
// successor may be started before it ends. Anybody may take the name: who is neither
// root nor our own user keeps nobody waiting.
func (t turn) await(ctx context.Context) (release func()) {
	for tries := 1; ctx.Err() == nil; tries++ {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: t.name})
		if err == nil {
			return t.hold(ctx, l)
		}
		waited := false
		if errors.Is(err, unix.EADDRINUSE) {
			waited, err = t.outlast(ctx)
		}
		switch {
		case waited:
			tries = 0
		case err != nil && (tries == turnTries || errors.Is(err, errNoDaemon)):
			klog.FromContext(ctx).Error(err, "It cannot be told whether another daemon runs, going on", "socket", t.name)
			return func() {}
		default:
			select {
			case <-ctx.Done():
			case <-time.After(turnPause):
			}
		}
	}
	return func() {}
}

// outlast waits until another daemon has ended, or is about to.
func (t turn) outlast(ctx context.Context) (waited bool, err error) {
	other, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: t.name})
	if err != nil {
		return false, err
	}
	defer func() { _ = other.Close() }()
	peer, err := peerOf(other)
	if err != nil {
		return false, err
	}
	_ = other.SetReadDeadline(time.Now().Add(turnGreeting))
	defer context.AfterFunc(ctx, func() { _ = other.Close() })()
	text := make([]byte, 1<<10)
	n, err := other.Read(text)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // one that is stopped or stuck says nothing
		return false, err
	}
	klog.FromContext(ctx).Info("Another daemon serves this node, waiting until it ends; unless it is to be replaced, stop one of them",
		"pid", peer.Pid, "other", string(text[:n]))
	_ = other.SetReadDeadline(time.Time{})
	_, _ = other.Read(text) // until the end
	return true, nil
}

// hold keeps the turn until release is called.
func (t turn) hold(ctx context.Context, l *net.UnixListener) (release func()) {
	logger := klog.FromContext(ctx)
	held, end := context.WithCancel(context.WithoutCancel(ctx)) // beyond what tells us to stop
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return // released
			}
			go func() {
				defer context.AfterFunc(held, func() { _ = c.Close() })()
				defer func() { _ = c.Close() }()
				peer, err := peerOf(c)
				if err != nil {
					return
				}
				logger.Info("Another daemon was started and waits until this one ends", "pid", peer.Pid)
				if _, err = c.Write([]byte(t.self)); err == nil {
					_, _ = c.Read(make([]byte, 1)) // until one of the two ends
				}
			}()
		}
	}()
	return func() {
		_ = l.Close() // first: who waits takes the name next
		end()
	}
}

// peerOf returns who is at the other end, if that may be a daemon. A process of another
// container has no number.
func peerOf(c *net.UnixConn) (peer *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(failed, err); err == nil && peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("process %d of user %d: %w", peer.Pid, peer.Uid, errNoDaemon)
	}
	return peer, err
}
