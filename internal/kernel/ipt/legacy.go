package ipt

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	domain, level := unix.AF_INET, unix.IPPROTO_IP
	if f == IPv6 {
		domain, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
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

// legacyInfo asks for the size of a table.
func legacyInfo(f Family, table string) (*tableInfo, error) {
	var info tableInfo
	copy(info.Name[:len(info.Name)-1], table)
	return &info, askLegacy(f, getInfo, unsafe.Pointer(&info), unsafe.Sizeof(info))
}

// legacyTable is a table as the kernel has it: entries one after the other,
// those of a chain together.
type legacyTable struct {
	*tableInfo
	family  Family
	name    string
	entries []byte
}

// readLegacy reads a table. The error is EAGAIN if it changed meanwhile.
func readLegacy(f Family, name string) (*legacyTable, error) {
	info, err := legacyInfo(f, name)
	if err != nil {
		return nil, err
	}
	const header = 40 // the name, the size, and what aligns the entries
	room := make([]byte, header+int(info.Size))
	copy(room, info.Name[:])
	binary.NativeEndian.PutUint32(room[len(info.Name):], info.Size)
	if err := askLegacy(f, getEntries, unsafe.Pointer(&room[0]), uintptr(len(room))); err != nil {
		return nil, err
	}
	return &legacyTable{info, f, name, room[header:]}, nil
}

// legacyEntry is a rule, the head of a chain or its end.
type legacyEntry struct {
	at, next int
	head     string // of this chain; empty: it is none
	packets  uint64
	first    bool // of its chain
	jump     int  // where it goes on; -1: it leaves the chain or goes on to the next
}

// entry reads what begins at an offset: struct ipt_entry and its target.
func (t *legacyTable) entry(at int) (legacyEntry, error) {
	const targetName, targetData = 2, 32
	offsets, counters := 88, 96
	if t.family == IPv6 {
		offsets, counters = 140, 152
	}
	e := legacyEntry{at: at, jump: -1}
	short := errors.New("an entry ends too early")
	if at+counters+8 > len(t.entries) {
		return e, short
	}
	e.packets = binary.NativeEndian.Uint64(t.entries[at+counters:])
	target := at + int(binary.NativeEndian.Uint16(t.entries[at+offsets:]))
	e.next = at + int(binary.NativeEndian.Uint16(t.entries[at+offsets+2:]))
	if e.next <= at || e.next > len(t.entries) || target+targetData+4 > e.next {
		return e, short
	}
	switch unix.ByteSliceToString(t.entries[target+targetName : target+targetData]) {
	case "ERROR":
		e.head = unix.ByteSliceToString(t.entries[target+targetData : e.next])
	case "": // the standard target: a verdict below zero, or where to go on
		if to := int(int32(binary.NativeEndian.Uint32(t.entries[target+targetData:]))); to >= 0 && to != e.next {
			e.jump = to
		}
	}
	return e, nil
}

// walk visits the entries of all chains, the last of each among them: a policy
// or the way back. It returns the chains by the offset of their first entry.
func (t *legacyTable) walk(visit func(chain string, e legacyEntry)) (starts map[int]string, err error) {
	starts = map[int]string{}
	for hook, name := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
		if t.ValidHooks&(1<<hook) != 0 {
			starts[int(t.Entry[hook])] = name
		}
	}
	chain := ""
	for at := 0; at < len(t.entries); {
		e, err := t.entry(at)
		if err != nil {
			return nil, fmt.Errorf("offset %d: %w", at, err)
		}
		if e.head != "" {
			starts[e.next] = e.head
		} else {
			if name := starts[at]; name != "" {
				chain, e.first = name, true
			}
			visit(chain, e)
		}
		at = e.next
	}
	return starts, nil
}

// count adds what the table's chains hold.
func (t *legacyTable) count(uses Uses) error {
	var jumps []int
	starts, err := t.walk(func(chain string, e legacyEntry) {
		if !e.first { // for the last one, which is no rule
			uses.add(t.name, chain, 1)
		} else {
			uses.add(t.name, chain, 0)
		}
		if e.jump >= 0 {
			jumps = append(jumps, e.jump)
		}
	})
	if err != nil {
		return err
	}
	for _, to := range jumps {
		uses.add(t.name, starts[to], 1)
	}
	return nil
}
