package ipt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tableInfo is the kernel's struct ipt_getinfo; struct ip6t_getinfo is the same.
type tableInfo struct {
	Name            [32]byte
	ValidHooks      uint32
	Entry, Policies [5]uint32 // offsets of the built-in chains' first and last entries, by hook
	Entries, Size   uint32
}

const (
	getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES

	// readAttempts bounds how often a table that another process changes is read again.
	readAttempts = 5
)

// getsockopt reads a socket option of legacy tables into answer, whose first field
// is the name of a table. The kernel accepts a socket of any type here, so that this
// needs CAP_NET_ADMIN only; the programs open a raw socket, which needs CAP_NET_RAW
// too.
func getsockopt(f Family, option uintptr, table string, answer []byte) error {
	level := unix.IPPROTO_IP
	if f == IPv6 {
		level = unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(int(f), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	copy(answer[:len(tableInfo{}.Name)-1], table)
	length := uint32(len(answer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), option,
		uintptr(unsafe.Pointer(&answer[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// LegacyPermission returns an error if this process lacks the capabilities to run
// the programs of the legacy variant, which report that as a missing table.
func LegacyPermission() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("the programs of iptables-legacy need CAP_NET_RAW in addition to CAP_NET_ADMIN: open a raw socket: %w", err)
	}
	return unix.Close(fd)
}

// LegacyTables returns the names of the legacy tables that are in use in the calling
// thread's network namespace. It runs no program and creates no table. Reading any
// other table would create it.
func LegacyTables(f Family) ([]string, error) {
	b, err := os.ReadFile("/proc/thread-self/net/" + f.String() + "_tables_names")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the module is not loaded
	}
	if err != nil {
		return nil, fmt.Errorf("list legacy tables: %w", err)
	}
	return strings.Fields(string(b)), nil
}

func legacyInfo(f Family, table string) (info tableInfo, err error) {
	answer := make([]byte, binary.Size(info))
	if err := getsockopt(f, getInfo, table, answer); err != nil {
		return info, fmt.Errorf("read the size of table %s: %w", table, err)
	}
	_, err = binary.Decode(answer, binary.NativeEndian, &info)
	return info, err
}

// legacyStamp returns the sizes of all tables in use.
func (c *Conn) legacyStamp(thorough bool) (Stamp, error) {
	names, err := LegacyTables(c.family)
	s := Stamp{sizes: make(map[string]tableSize, len(names))}
	for _, name := range names {
		info, err := legacyInfo(c.family, name)
		if err == nil && thorough {
			c.sums[name], err = legacySum(c.family, name)
		}
		if err != nil {
			return Stamp{}, err
		}
		s.sizes[name] = tableSize{info.Entries, info.Size, c.sums[name]}
	}
	return s, err
}

// legacySum returns a checksum of the rules of a table, without their counters.
func legacySum(f Family, table string) (sum uint32, err error) {
	entries, _, err := readLegacy(f, table)
	polynomial, counters := crc32.MakeTable(crc32.Castagnoli), legacyCounters(f)
	for _, e := range entries {
		sum = crc32.Update(sum, polynomial, e.bytes[:counters])
		sum = crc32.Update(sum, polynomial, e.bytes[counters+16:])
	}
	return sum, err
}

// legacyCounters returns the offset of the packet and byte counters in an entry. The
// matches and the target follow them.
func legacyCounters(f Family) int {
	if f == IPv6 {
		return 152
	}
	return 96
}

// legacyEntries returns the encoded entries of a table, chain by chain.
func legacyEntries(f Family, table string) (info tableInfo, entries []byte, err error) {
	const header = 40 // the name, the size and padding
	for range readAttempts {
		if info, err = legacyInfo(f, table); err != nil {
			return info, nil, err
		}
		answer := make([]byte, header+int(info.Size))
		binary.NativeEndian.PutUint32(answer[len(info.Name):], info.Size)
		if err = getsockopt(f, getEntries, table, answer); err != unix.EAGAIN {
			return info, answer[header:], err
		}
	}
	return info, nil, err
}

// legacyEntry is a rule, or the last entry of a chain: its policy or the return.
type legacyEntry struct {
	chain   string
	packets uint64
	jump    int // the offset of the next entry to evaluate; negative if it is a verdict or another target
	target  int // the offset of the target in bytes
	bytes   []byte
}

// readLegacy returns the entries of all chains of a table, and the names of the
// chains by the offset of their first entry.
func readLegacy(f Family, table string) (all []legacyEntry, starts map[int]string, err error) {
	const targetName, targetData = 2, 32
	counters := legacyCounters(f)
	offsets := map[Family]int{IPv4: 88, IPv6: 140}[f] // in struct ipt_entry, ip6t_entry
	info, b, err := legacyEntries(f, table)
	if err != nil {
		return nil, nil, fmt.Errorf("read table %s of %s: %w", table, Name(f, Legacy), err)
	}
	starts = map[int]string{}
	for hook, name := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
		if info.ValidHooks&(1<<hook) != 0 {
			starts[int(info.Entry[hook])] = name
		}
	}
	chain := ""
	for at, next := 0, 0; at < len(b); at = next {
		target := at
		if len(b)-at >= counters+16 {
			target = at + int(binary.NativeEndian.Uint16(b[at+offsets:]))
			next = at + int(binary.NativeEndian.Uint16(b[at+offsets+2:]))
		}
		if next > len(b) || target+targetData+4 > next {
			return nil, nil, fmt.Errorf("read table %s of %s: the entry at offset %d is truncated", table, Name(f, Legacy), at)
		}
		if starts[at] != "" {
			chain = starts[at]
		}
		e := legacyEntry{chain, binary.NativeEndian.Uint64(b[at+counters:]), -1, target - at, b[at:next]}
		switch unix.ByteSliceToString(b[target+targetName : target+targetData]) {
		case "ERROR": // precedes a chain, or ends the table
			starts[next] = unix.ByteSliceToString(b[target+targetData : next])
			continue
		case "": // the standard target: a negative verdict, or an offset
			e.jump = int(int32(binary.NativeEndian.Uint32(b[target+targetData:])))
		}
		all = append(all, e)
	}
	delete(starts, len(b))
	return all, starts, nil
}

// legacyUses counts the uses of chains in all tables in use.
func legacyUses(f Family) (Uses, error) {
	names, err := LegacyTables(f)
	uses := Uses{}
	for _, table := range names {
		entries, starts, err := readLegacy(f, table)
		if err != nil {
			return nil, err
		}
		for _, chain := range starts {
			uses.add(table, chain, -1) // its last entry is not a rule
		}
		for _, e := range entries {
			uses.add(table, e.chain, 1)
			if to := starts[e.jump]; to != "" { // not the start of a chain if the rule has no target
				uses.add(table, to, 1)
			}
		}
	}
	return uses, err
}

// legacyPackets implements Packets for the legacy variant.
func legacyPackets(f Family, table, chain, comment string) (n uint64, err error) {
	names, err := LegacyTables(f)
	if err != nil || !slices.Contains(names, table) {
		return 0, err
	}
	entries, _, err := readLegacy(f, table)
	for _, e := range entries {
		if e.chain == chain && bytes.Contains(e.bytes, []byte(comment)) {
			n += e.packets
		}
	}
	return n, err
}
