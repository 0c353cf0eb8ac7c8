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

// legacyTable is a table as the kernel has it: entries one after the other,
// those of a chain together.
type legacyTable struct {
	*tableInfo
	family  Family
	name    string
	entries []byte
}

// readLegacy reads a table, again if somebody changes it meanwhile.
func readLegacy(f Family, name string) (t *legacyTable, err error) {
	for range askAttempts {
		var info *tableInfo
		if info, err = legacyInfo(f, name); err != nil {
			return nil, err
		}
		const header = 40 // the name, the size, and what aligns the entries
		room := make([]byte, header+int(info.Size))
		copy(room, info.Name[:])
		binary.NativeEndian.PutUint32(room[len(info.Name):], info.Size)
		err = askLegacy(f, getEntries, unsafe.Pointer(&room[0]), uintptr(len(room)))
		if err != unix.EAGAIN {
			t = &legacyTable{info, f, name, room[header:]}
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read table %s of %s: %w", name, Name(f, Legacy), err)
	}
	return t, nil
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
			return nil, fmt.Errorf("read table %s of %s: offset %d: %w", t.name, Name(t.family, Legacy), at, err)
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

// legacyUses reads the tables that are in use.
func legacyUses(f Family) (Uses, error) {
	names, err := LegacyTables(f)
	uses := Uses{}
	for _, name := range names {
		t, err := readLegacy(f, name)
		if err == nil {
			err = t.count(uses)
		}
		if err != nil {
			return nil, err
		}
	}
	return uses, err
}

// count adds what the table's chains hold: the first entry of each stands for its
// last one, which is no rule.
func (t *legacyTable) count(uses Uses) error {
	var jumps []int
	starts, err := t.walk(func(chain string, e legacyEntry) {
		if e.first {
			uses.add(t.name, chain, 0)
		} else {
			uses.add(t.name, chain, 1)
		}
		if e.jump >= 0 {
			jumps = append(jumps, e.jump)
		}
	})
	for _, to := range jumps {
		uses.add(t.name, starts[to], 1)
	}
	return err
}

// legacyPackets reads the table, if it is in use.
func legacyPackets(f Family, table, chain, comment string) (n uint64, err error) {
	names, err := LegacyTables(f)
	if err != nil || !slices.Contains(names, table) {
		return 0, err
	}
	t, err := readLegacy(f, table)
	if err != nil {
		return 0, err
	}
	_, err = t.walk(func(of string, e legacyEntry) {
		if of == chain && bytes.Contains(t.entries[e.at:e.next], []byte(comment)) {
			n += e.packets
		}
	})
	return n, err
}
