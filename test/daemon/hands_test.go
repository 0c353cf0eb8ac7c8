package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice/test/daemon/testbed"
)

// changeEntry changes one bit, so that the check sum is not right any more.
func changeEntry(m *ebpf.Map, key, value []byte) error {
	value[0] ^= 1
	return m.Put(key, value)
}

// eachLink does something to where programs are attached.
func eachLink(bed *testbed.Testbed, do func(link.Link) error, names ...string) (err error) {
	for _, name := range names {
		l, failed := link.LoadPinnedLink(filepath.Join(bed.Pins(), name), nil)
		if failed == nil {
			failed = errors.Join(do(l), l.Close())
		}
		err = errors.Join(err, failed)
	}
	return err
}

// replaceProgram puts a program in the place of ours that lets everything pass.
func replaceProgram(l link.Link) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		return err
	}
	return errors.Join(l.Update(p), p.Close())
}

// takePorts listens where mode userspace does: its address is refused, also if a process
// is ready to share, as long as that is another user's; others' are to be had.
func takePorts(bed *testbed.Testbed) error {
	return bed.Lab.Node().Do(func() error {
		for port := 10270; port < 10274; port++ {
			if l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port)); !errors.Is(err, unix.EADDRINUSE) {
				return fmt.Errorf("listen on port %d of ours: %v, error %w", port, l, err)
			}
			shares := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
				failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
				return errors.Join(failed, err)
			}}
			for _, at := range []string{"10.0.0.1", "192.168.0.2"} {
				l, err := shares.Listen(context.Background(), "tcp4", fmt.Sprintf("%s:%d", at, port))
				if err != nil {
					return err
				}
				bed.T.Cleanup(func() { l.Close() })
			}
		}
		return nil
	})
}
