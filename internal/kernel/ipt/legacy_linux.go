package ipt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tableInfo is the kernel's struct ipt_getinfo, which is that of IPv6 too.
type tableInfo struct {
	Name            [32]byte
	ValidHooks      uint32
	Entry, Policies [5]uint32 // offsets of the built-in chains' first and last entries, by hook
	Entries, Size   uint32
}

// The questions to legacy tables, IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES, and
// the like of IPv6. A socket of any type will do, so that asking needs
// CAP_NET_ADMIN only; the programs need CAP_NET_RAW too.
const (
	getInfo    = 64
	getEntries = 65
)

// askLegacy fills what a question has room for.
func askLegacy(f Family, question uintptr, room unsafe.Pointer, size uintptr) error {
	level := unix.IPPROTO_IP
	if f == IPv6 {
		level = unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(int(f), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), question,
		uintptr(room), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// LegacyPermission returns an error if this process may not run the programs of
// the legacy variant. They themselves cannot tell that from a missing table.
func LegacyPermission() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("the programs of iptables-legacy need CAP_NET_RAW beside CAP_NET_ADMIN: open a raw socket: %w", err)
	}
	return unix.Close(fd)
}

// LegacyTables returns the tables of the legacy variant that the calling
// thread's network namespace has in use. It needs no program and makes none;
// asking for any other table would make it.
func LegacyTables(f Family) ([]string, error) {
	b, err := os.ReadFile("/proc/thread-self/net/" + f.String() + "_tables_names")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the kernel has no such tables, or not yet
	}
	if err != nil {
		return nil, fmt.Errorf("list legacy tables: %w", err)
	}
	return strings.Fields(string(b)), nil
}

// legacyInfo asks for the size of a table.
func legacyInfo(f Family, table string) (*tableInfo, error) {
	var info tableInfo
	copy(info.Name[:len(info.Name)-1], table)
	if err := askLegacy(f, getInfo, unsafe.Pointer(&info), unsafe.Sizeof(info)); err != nil {
		return nil, fmt.Errorf("ask for the size of table %s: %w", table, err)
	}
	return &info, nil
}

// legacyStamp is the sizes of all tables in use.
func legacyStamp(f Family) (Stamp, error) {
	names, err := LegacyTables(f)
	s := Stamp{sizes: make(map[string]tableSize, len(names))}
	for _, name := range names {
		info, err := legacyInfo(f, name)
		if err != nil {
			return Stamp{}, err
		}
		s.sizes[name] = tableSize{info.Entries, info.Size}
	}
	return s, err
}

// legacyEntries returns a table as the kernel has it: entries one after the other,
// those of a chain together. It asks again if somebody changes it meanwhile.
func legacyEntries(f Family, table string) (info *tableInfo, entries []byte, err error) {
	const header = 40 // the name, the size, and what aligns the entries
	for range askAttempts {
		if info, err = legacyInfo(f, table); err != nil {
			return nil, nil, err
		}
		room := make([]byte, header+int(info.Size))
		copy(room, info.Name[:])
		binary.NativeEndian.PutUint32(room[len(info.Name):], info.Size)
		err = askLegacy(f, getEntries, unsafe.Pointer(&room[0]), uintptr(len(room)))
		if entries = room[header:]; err != unix.EAGAIN {
			break
		}
	}
	return info, entries, err
}

// legacyEntry is a rule of a chain, or its end: a policy or the way back.
type legacyEntry struct {
	chain   string
	first   bool // of the chain
	packets uint64
	jump    int // the offset where it goes on; -1: it leaves the chain
	bytes   []byte
}

// readLegacy visits the entries of all chains of a table, and returns the chains
// by the offsets of their first entries.
func readLegacy(f Family, table string, visit func(legacyEntry)) (starts map[int]string, err error) {
	info, entries, err := legacyEntries(f, table)
	if err != nil {
		return nil, fmt.Errorf("read table %s of %s: %w", table, Name(f, Legacy), err)
	}
	starts = map[int]string{}
	for hook, name := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
		if info.ValidHooks&(1<<hook) != 0 {
			starts[int(info.Entry[hook])] = name
		}
	}
	chain := ""
	for at := 0; at < len(entries); {
		e, head, whole := decodeEntry(f, entries[at:])
		if !whole {
			return nil, fmt.Errorf("read table %s of %s: the entry at offset %d ends too early", table, Name(f, Legacy), at)
		}
		next := at + len(e.bytes)
		if head != "" {
			starts[next] = head
		} else {
			if e.first = starts[at] != ""; e.first {
				chain = starts[at]
			}
			if e.chain = chain; e.jump == next {
				e.jump = -1 // a rule without a target goes on to the next one
			}
			visit(e)
		}
		at = next
	}
	return starts, nil
}

// decodeEntry reads struct ipt_entry and its target, and the name of the chain
// that it is the head of, if it is whole.
func decodeEntry(f Family, b []byte) (e legacyEntry, head string, whole bool) {
	const targetName, targetData = 2, 32
	offsets, counters := 88, 96
	if f == IPv6 {
		offsets, counters = 140, 152
	}
	if len(b) < counters+8 {
		return e, "", false
	}
	target, next := int(binary.NativeEndian.Uint16(b[offsets:])), int(binary.NativeEndian.Uint16(b[offsets+2:]))
	if next > len(b) || target+targetData+4 > next {
		return e, "", false
	}
	e = legacyEntry{packets: binary.NativeEndian.Uint64(b[counters:]), jump: -1, bytes: b[:next]}
	switch unix.ByteSliceToString(b[target+targetName : target+targetData]) {
	case "ERROR":
		head = unix.ByteSliceToString(b[target+targetData : next])
	case "": // the standard target: a verdict below zero, or where to go on
		e.jump = max(-1, int(int32(binary.NativeEndian.Uint32(b[target+targetData:]))))
	}
	return e, head, true
}

// legacyUses reads the tables that are in use.
func legacyUses(f Family) (Uses, error) {
	names, err := LegacyTables(f)
	uses := Uses{}
	for _, table := range names {
		var jumps []int
		starts, err := readLegacy(f, table, func(e legacyEntry) {
			n := 1
			if e.first {
				n = 0 // it stands for the last one, which is no rule
			}
			uses.add(table, e.chain, n)
			if e.jump >= 0 {
				jumps = append(jumps, e.jump)
			}
		})
		if err != nil {
			return nil, err
		}
		for _, to := range jumps {
			uses.add(table, starts[to], 1)
		}
	}
	return uses, err
}

// legacyPackets reads the table, if it is in use.
func legacyPackets(f Family, table, chain, comment string) (n uint64, err error) {
	names, err := LegacyTables(f)
	if err != nil || !slices.Contains(names, table) {
		return 0, err
	}
	_, err = readLegacy(f, table, func(e legacyEntry) {
		if e.chain == chain && bytes.Contains(e.bytes, []byte(comment)) {
			n += e.packets
		}
	})
	return n, err
}
