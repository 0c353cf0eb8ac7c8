package statusapi

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// Peer returns the PID of the process that listens at a unix socket.
func Peer(socket string) (pid int, err error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var c *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		c, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || failed != nil {
		return 0, errors.Join(err, failed)
	}
	if c.Pid == 0 {
		return 0, errors.New("the process of the socket is in another PID namespace")
	}
	return int(c.Pid), nil
}

// stopped reports whether a process is stopped by a signal or a debugger.
func stopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, found := bytes.Cut(text, []byte(") ")) // the name of the process may contain spaces
	return err == nil && found && len(state) > 0 && (state[0] == 'T' || state[0] == 't')
}

// elsewhere reports whether a process is in another network namespace than this one.
func elsewhere(pid int) bool {
	ours, err := os.Readlink("/proc/self/ns/net")
	theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && err2 == nil && ours != theirs
}
