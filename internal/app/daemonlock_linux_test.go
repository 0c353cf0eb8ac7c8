package app

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/conformance/lab"
)

// newLock returns a lock with a name of the test's own, a context, and a function
// that returns the log. The context ends after a minute, so that a lock that is never
// acquired fails the test instead of blocking it.
func newLock(t *testing.T) (daemonLock, context.Context, func() string) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	log := logger.GetSink().(ktesting.Underlier).GetBuffer()
	ctx, stop := context.WithTimeout(klog.NewContext(t.Context(), logger), time.Minute)
	t.Cleanup(stop)
	return daemonLock{fmt.Sprintf("@sluice-test-%d-%s", os.Getpid(), t.Name()), "mode nftables"}, ctx, log.String
}

// taken acquires the lock in another goroutine.
func (l daemonLock) taken(ctx context.Context) <-chan func() {
	c := make(chan func(), 1)
	go func() { c <- l.acquire(ctx) }()
	return c
}

func logged(t *testing.T, log func() string, what string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(log(), what); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not in the log:\n%s", what, log())
		}
	}
}

// TestLockHasOneHolder checks that a second daemon waits for the first one, and logs
// which one it is.
func TestLockHasOneHolder(t *testing.T) {
	lock, ctx, log := newLock(t)
	release := lock.acquire(ctx)
	second := lock.taken(ctx)
	third, stop := context.WithCancel(ctx)
	waits := lock.taken(third)
	logged(t, log, fmt.Sprintf(`waiting until it ends; if this one shall not replace it, stop one of them pid=%d other="mode nftables"`, os.Getpid()))
	select {
	case <-second:
		t.Fatal("the second does not wait")
	case <-waits:
		t.Fatal("the third does not wait")
	default:
	}
	stop()
	(<-waits)()
	release()
	(<-second)()
	lock.acquire(ctx)()
}

// TestLockOfForeignProcess checks that a holder which is not a daemon does not
// prevent the start.
func TestLockOfForeignProcess(t *testing.T) {
	t.Run("another user", func(t *testing.T) {
		lab.RequireRoot(t) // only root can become another user; of this user, the holder could be a daemon
		lock, ctx, log := newLock(t)
		listening := make(chan error)
		go func() {
			runtime.LockOSThread() // for good: the thread is another user's, and ends with its goroutine
			_, _, failed := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
			if failed != 0 {
				listening <- failed
				return
			}
			l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: lock.name})
			listening <- err
			if err == nil {
				<-t.Context().Done()
				_ = l.Close()
			}
		}()
		if err := <-listening; err != nil {
			t.Fatal(err)
		}
		lock.acquire(ctx)()
		logged(t, log, "of user 65534: its owner is not a sluice daemon")
	})
	t.Run("nobody listens", func(t *testing.T) {
		lock, ctx, log := newLock(t)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: lock.name})
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		lock.acquire(ctx)()
		logged(t, log, "Cannot determine whether another daemon runs, starting anyway")
	})
}
