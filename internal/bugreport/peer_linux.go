package bugreport

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// peer returns the PID of the process that listens on a unix socket.
func peer(socket string) (int32, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var c *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		c, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return 0, errors.Join(err, failed)
	}
	return c.Pid, nil
}
