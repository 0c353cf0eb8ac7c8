package main

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"time"
	"unicode/utf16"
)

// windowsTrees returns the layers of the image for Windows nodes. Only a host-process container can
// run it, because it contains no Windows. The first layer has the registry hives that Windows
// requires in the lowest layer of any image; they are empty.
func (r *release) windowsTrees(b *program) (base, daemon tree, err error) {
	base, daemon = tree{}, tree{}
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		err = errors.Join(err, base.add("Files/Windows/System32/config/"+name, entry{mode: 0o644, kind: tar.TypeReg, text: emptyHive(name), time: baseTime}))
	}
	err = errors.Join(
		err,
		daemon.add("Files/sluice.exe", entry{mode: 0o755, kind: tar.TypeReg, text: b.text, time: r.date}),
		daemon.add("Hives", entry{mode: 0o755, kind: tar.TypeDir, time: r.date}), // its changes of the hives
	)
	return base, daemon, err
}

// baseTime is the time of the lowest layer, which is the same in all releases.
var baseTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	hiveBlock = 4096
	noCell    = 0xffffffff
)

// emptyHive returns a registry hive, version 1.3, with an empty root key: a header and one bin with
// the key, its security descriptor, and a free cell.
func emptyHive(name string) []byte {
	key := make([]byte, 76, 128)
	put := binary.LittleEndian
	copy(key, "nk")
	put.PutUint16(key[2:], 0x2c) // flags: root key, no delete, compressed name
	put.PutUint64(key[4:], fileTime(baseTime))
	for _, at := range []int{28, 32, 40, 48} { // no subkeys, values or class
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

// cell returns a used cell: its size is negative and a multiple of 8.
func cell(text []byte) []byte {
	size := (4 + len(text) + 7) &^ 7
	out := binary.LittleEndian.AppendUint32(nil, uint32(-size))
	return append(append(out, text...), make([]byte, size-4-len(text))...)
}

// keySecurity returns the security cell of the key: full access for administrators and the system.
func keySecurity(self uint32) []byte {
	put := binary.LittleEndian
	administrators := []byte{1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0} // S-1-5-32-544
	system := []byte{1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0}                        // S-1-5-18
	var entries []byte
	for _, who := range [][]byte{administrators, system} {
		entries = put.AppendUint16(append(entries, 0, 2), uint16(8+len(who))) // access allowed, inherited by subkeys
		entries = append(put.AppendUint32(entries, 0xf003f), who...)          // KEY_ALL_ACCESS
	}
	list := put.AppendUint16([]byte{2, 0}, uint16(8+len(entries)))
	list = append(append(list, 2, 0, 0, 0), entries...)
	descriptor := []byte{1, 0, 4, 0x80}                                                     // self-relative, with a DACL
	for _, at := range []int{20 + len(list), 20 + len(list) + len(administrators), 0, 20} { // owner, group, no SACL, DACL
		descriptor = put.AppendUint32(descriptor, uint32(at))
	}
	descriptor = append(append(append(descriptor, list...), administrators...), system...)
	out := []byte("sk\x00\x00")
	for _, v := range []uint32{self, self, 1, uint32(len(descriptor))} { // circular list of one cell, reference count 1
		out = put.AppendUint32(out, v)
	}
	return append(out, descriptor...)
}

// fileTime returns a Windows FILETIME: units of 100 ns since 1601.
func fileTime(t time.Time) uint64 { return uint64(t.Unix()+11644473600) * 1e7 }
