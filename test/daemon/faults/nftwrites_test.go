package faults

import (
	"errors"
	"fmt"
	"regexp"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/test/daemon/testbed"
)

// writes counts what is written to nf_tables, where rules of every mode are. The kernel
// tells of a transaction before the call returns that commits it.
type writes struct {
	t  *testing.T
	fd int
}

func countWrites(bed *testbed.Testbed) *writes {
	bed.T.Helper()
	w := &writes{t: bed.T}
	if err := bed.Lab.Node().Do(func() (err error) {
		if w.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.Bind(w.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
			unix.SetsockoptInt(w.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES))
	}); err != nil {
		bed.T.Fatal(err)
	}
	bed.T.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

// taken returns what was written since it was last called: the kind of each message, and the
// table. What a mode tries out in a table of its own, and takes back, is left out.
func (w *writes) taken() (objects []string) {
	w.t.Helper()
	b := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(w.fd, b, 0)
		if errors.Is(err, unix.EAGAIN) {
			return objects
		}
		if err != nil {
			w.t.Fatal(err)
		}
		messages, err := syscall.ParseNetlinkMessage(b[:n])
		if err != nil {
			w.t.Fatal(err)
		}
		for _, m := range messages {
			kind := int(m.Header.Type & 0xff)
			if name := w.nameOf(m); kind != unix.NFT_MSG_NEWGEN && !tried.MatchString(name) {
				objects = append(objects, fmt.Sprintf("%d %s", kind, name))
			}
		}
	}
}

// tried matches the tables and chains with which a mode tries out what the kernel can do.
var tried = regexp.MustCompile(`-probe |KUBE-.*PROBE`)

// nameOf returns the table that an object is in, and a chain's name.
func (w *writes) nameOf(m syscall.NetlinkMessage) (name string) {
	w.t.Helper()
	attributes, err := nl.ParseRouteAttr(m.Data[nl.SizeofNfgenmsg:])
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.NFTA_CHAIN_TABLE || a.Attr.Type == unix.NFTA_CHAIN_NAME {
			name += unix.ByteSliceToString(a.Value) + " "
		}
	}
	return name
}
