package foreign

import (
	"errors"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

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
