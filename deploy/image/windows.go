package main

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"time"
	"unicode/utf16"
)

// windowsTrees are the layers of the image for Windows nodes, which a host-process
// container alone can run: it has no Windows of its own. The first is what Windows
// wants of the lowest layer of any image, registry hives, which are empty.
func (r *release) windowsTrees(b *program) (base, daemon tree, err error) {
	base, daemon = tree{}, tree{}
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		err = errors.Join(err, base.add("Files/Windows/System32/config/"+name, entry{mode: 0o644, kind: tar.TypeReg, text: emptyHive(name), time: baseTime}))
	}
	err = errors.Join(
		err,
		daemon.add("Files/sluice.exe", entry{mode: 0o755, kind: tar.TypeReg, text: b.text, time: r.date}),
		daemon.add("Hives", entry{mode: 0o755, kind: tar.TypeDir, time: r.date}), // what it changes in those
	)
	return base, daemon, err
}

// baseTime is that of the lowest layer, which is the same in all releases.
var baseTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	hiveBlock = 4096
	noCell    = 0xffffffff
)

// emptyHive returns a registry hive, version 1.3, with a key that has nothing: a
// header and one bin, which has the key, who may use it, and the rest as a free cell.
func emptyHive(name string) []byte {
	key := make([]byte, 76, 128)
	put := binary.LittleEndian
	copy(key, "nk")
	put.PutUint16(key[2:], 0x2c) // the root, not to be deleted, with a name of one byte for each letter
	put.PutUint64(key[4:], fileTime(baseTime))
	for _, at := range []int{28, 32, 40, 48} { // lists of keys and values, a class
		put.PutUint32(key[at:], noCell)
	}
	put.PutUint16(key[72:], uint16(len(name)))
	key = append(key, name...)

	bin := make([]byte, 32, hiveBlock)
	copy(bin, "hbin")
	put.PutUint32(bin[8:], hiveBlock)
	put.PutUint64(bin[20:], fileTime(baseTime))
	root := uint32(len(bin))
	rights := root + uint32(len(cell(key)))
	put.PutUint32(key[44:], rights)
	bin = append(append(bin, cell(key)...), cell(keySecurity(rights))...)
	bin = put.AppendUint32(bin, uint32(hiveBlock-len(bin))) // a free cell has a positive size
	bin = append(bin, make([]byte, hiveBlock-len(bin))...)

	head := make([]byte, hiveBlock)
	copy(head, "regf")
	for at, v := range map[int]uint32{4: 1, 8: 1, 20: 1, 24: 3, 32: 1, 36: root, 40: hiveBlock, 44: 1} {
		put.PutUint32(head[at:], v)
	}
	put.PutUint64(head[12:], fileTime(baseTime))
	for i, c := range utf16.Encode([]rune(name)) {
		put.PutUint16(head[48+2*i:], c)
	}
	var sum uint32
	for at := 0; at < 508; at += 4 {
		sum ^= put.Uint32(head[at:])
	}
	put.PutUint32(head[508:], sum)
	return append(head, bin...)
}

// cell returns a cell that is used: its size, negative, and a multiple of 8.
func cell(text []byte) []byte {
	size := (4 + len(text) + 7) &^ 7
	out := binary.LittleEndian.AppendUint32(nil, uint32(-size))
	return append(append(out, text...), make([]byte, size-4-len(text))...)
}

// keySecurity returns who may use the key: administrators and the system, all.
func keySecurity(self uint32) []byte {
	put := binary.LittleEndian
	administrators := []byte{1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0} // S-1-5-32-544
	system := []byte{1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0}                        // S-1-5-18
	var entries []byte
	for _, who := range [][]byte{administrators, system} {
		entries = put.AppendUint16(append(entries, 0, 2), uint16(8+len(who))) // allowed, for keys below, too
		entries = append(put.AppendUint32(entries, 0xf003f), who...)          // KEY_ALL_ACCESS
	}
	list := put.AppendUint16([]byte{2, 0}, uint16(8+len(entries)))
	list = append(append(list, 2, 0, 0, 0), entries...)
	descriptor := []byte{1, 0, 4, 0x80}                                                     // self-relative, with a list
	for _, at := range []int{20 + len(list), 20 + len(list) + len(administrators), 0, 20} { // owner, group, no audit, the list
		descriptor = put.AppendUint32(descriptor, uint32(at))
	}
	descriptor = append(append(append(descriptor, list...), administrators...), system...)
	out := []byte("sk\x00\x00")
	for _, v := range []uint32{self, self, 1, uint32(len(descriptor))} { // a ring of one, used once
		out = put.AppendUint32(out, v)
	}
	return append(out, descriptor...)
}

// fileTime is a time as Windows has it: 100 ns since 1601.
func fileTime(t time.Time) uint64 { return uint64(t.Unix()+11644473600) * 1e7 }
