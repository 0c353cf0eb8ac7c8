package daemon

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// writes counts what is written to nf_tables, where rules of every mode are. The kernel
// tells of a transaction before the call returns that commits it.
type writes struct {
	t  *testing.T
	fd int
}

func (s *site) countWrites() *writes {
	s.t.Helper()
	w := &writes{t: s.t}
	if err := s.lab.Node().Do(func() (err error) {
		if w.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.Bind(w.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
			unix.SetsockoptInt(w.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES))
	}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

// taken returns how many objects were written since it was last called, in how many
// transactions.
func (w *writes) taken() (objects, transactions int) {
	w.t.Helper()
	b := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(w.fd, b, 0)
		if errors.Is(err, unix.EAGAIN) {
			return objects, transactions
		}
		if err != nil {
			w.t.Fatal(err)
		}
		messages, err := syscall.ParseNetlinkMessage(b[:n])
		if err != nil {
			w.t.Fatal(err)
		}
		for _, m := range messages {
			if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
				transactions++
			} else {
				objects++
			}
		}
	}
}
