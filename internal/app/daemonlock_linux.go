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

// lockName is the name of an abstract unix socket, which one process of a network
// namespace can bind. Rules belong to a network namespace, too, so the lock works
// across containers and file systems.
const lockName = "@sluice-daemon"

const (
	// lockTries is how often to try if the name is in use but no process answers, as at
	// the moment when a daemon starts or ends.
	lockTries      = 10
	lockRetryDelay = 50 * time.Millisecond

	// greetingTimeout is how long the holder of the lock may take to describe itself.
	greetingTimeout = time.Second
)

// daemonLock lets one daemon at a time write the rules of a network namespace.
type daemonLock struct {
	name string
	self string // describes this daemon to others, for their log
}

// errForeignHolder means that a process which cannot be a daemon holds the lock.
var errForeignHolder = errors.New("its owner is not a sluice daemon")

// acquire waits until no other daemon writes the rules of this network namespace, or
// until ctx ends. Two daemons would undo each other's changes, or both translate
// packets. A daemon releases the lock after its last write, so its successor can be
// started before it ends. Any process can bind the name, so a holder that is neither
// root nor our own user is ignored, and so are errors after some tries: acquire then
// returns without the lock.
func (l daemonLock) acquire(ctx context.Context) (release func()) {
	for tries := 1; ctx.Err() == nil; tries++ {
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: l.name})
		if err == nil {
			return l.hold(ctx, listener)
		}
		waited := false
		if errors.Is(err, unix.EADDRINUSE) {
			waited, err = l.waitForHolder(ctx)
		}
		switch {
		case waited:
			tries = 0
		case err != nil && (tries == lockTries || errors.Is(err, errForeignHolder)):
			klog.FromContext(ctx).Error(err, "Cannot determine whether another daemon runs, starting anyway", "socket", l.name)
			return func() {}
		default:
			select {
			case <-ctx.Done():
			case <-time.After(lockRetryDelay):
			}
		}
	}
	return func() {}
}

// waitForHolder waits until the daemon that holds the lock releases it. It reports
// whether there was one.
func (l daemonLock) waitForHolder(ctx context.Context) (waited bool, err error) {
	other, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: l.name})
	if err != nil {
		return false, err
	}
	defer func() { _ = other.Close() }()
	peer, err := peerCredentials(other)
	if err != nil {
		return false, err
	}
	_ = other.SetReadDeadline(time.Now().Add(greetingTimeout))
	defer context.AfterFunc(ctx, func() { _ = other.Close() })()
	text := make([]byte, 1<<10)
	n, err := other.Read(text)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // a stopped or blocked daemon does not answer
		return false, err
	}
	klog.FromContext(ctx).Info("Another daemon serves this node, waiting until it ends; if this one shall not replace it, stop one of them",
		"pid", peer.Pid, "other", string(text[:n]))
	_ = other.SetReadDeadline(time.Time{})
	_, _ = other.Read(text) // blocks until the connection is closed
	return true, nil
}

// hold accepts connections of waiting daemons until release is called, which closes
// them.
func (l daemonLock) hold(ctx context.Context, listener *net.UnixListener) (release func()) {
	logger := klog.FromContext(ctx)
	held, end := context.WithCancel(context.WithoutCancel(ctx)) // the lock is held beyond the end of ctx
	go func() {
		for {
			c, err := listener.AcceptUnix()
			if err != nil {
				return // released
			}
			go func() {
				defer context.AfterFunc(held, func() { _ = c.Close() })()
				defer func() { _ = c.Close() }()
				peer, err := peerCredentials(c)
				if err != nil {
					return
				}
				logger.Info("Another daemon has started and waits until this one ends", "pid", peer.Pid)
				if _, err = c.Write([]byte(l.self)); err == nil {
					_, _ = c.Read(make([]byte, 1)) // blocks until one of the two ends
				}
			}()
		}
	}()
	return func() {
		_ = listener.Close() // first, because a waiting daemon then binds the name
		end()
	}
}

// peerCredentials returns the process at the other end. It is an error if its user
// cannot run a daemon. The PID is 0 if the process is in another PID namespace.
func peerCredentials(c *net.UnixConn) (peer *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(failed, err); err == nil && peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("process %d of user %d: %w", peer.Pid, peer.Uid, errForeignHolder)
	}
	return peer, err
}
