package ipt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Stamp is a number of the kernel's that moves when tables change: of nf_tables
// how many transactions there were, of the legacy tables their sizes.
type Stamp struct {
	Generation uint32
	sizes      map[string]tableSize
}

// tableSize is the size of a legacy table. An entry is a rule; a chain that is
// not built in has two more.
type tableSize struct {
	entries, bytes uint32
}

// Change is what a restore does to a table, by how many more chains and rules
// there are afterwards.
type Change struct {
	Table         string
	Chains, Rules int
}

// Became reports whether these changes, and nobody else's, make the stamp
// another one: every table that is restored is a transaction, and adds or takes
// away a known number of entries. Without changes it reports whether the two
// are equal.
func (s Stamp) Became(now Stamp, changes ...Change) bool {
	if s.sizes == nil && now.sizes == nil {
		return now.Generation-s.Generation == uint32(len(changes))
	}
	want := make(map[string]tableSize, len(s.sizes))
	for name, size := range s.sizes {
		want[name] = size
	}
	for _, c := range changes {
		size := want[c.Table]
		size.entries += uint32(2*c.Chains + c.Rules)
		size.bytes = now.sizes[c.Table].bytes // which depends on what the rules are
		want[c.Table] = size
	}
	if len(want) != len(now.sizes) {
		return false
	}
	for name, size := range want {
		if now.sizes[name] != size {
			return false
		}
	}
	return true
}

// Stamp asks the kernel.
func (c *Conn) Stamp(context.Context) (Stamp, error) {
	if c.variant == NFT {
		n, err := generation()
		return Stamp{Generation: n}, err
	}
	names, err := LegacyTables(c.family)
	if err != nil {
		return Stamp{}, err
	}
	s := Stamp{sizes: make(map[string]tableSize, len(names))}
	for _, name := range names { // asking for any other would make it
		info, err := legacyInfo(c.family, name)
		if err != nil {
			return Stamp{}, fmt.Errorf("ask for the size of table %s: %w", name, err)
		}
		s.sizes[name] = tableSize{info.Entries, info.Size}
	}
	return s, nil
}

// generation asks nf_tables for its generation, which every transaction moves on.
func generation() (uint32, error) {
	const idAttribute = 1
	answers, err := askNFTables(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, netlink.Request)
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nf_tables: %w", err)
	}
	for _, attributes := range answers {
		for _, a := range attributes {
			if a.Type == idAttribute && len(a.Data) == 4 {
				return binary.BigEndian.Uint32(a.Data), nil
			}
		}
	}
	return 0, errors.New("ask for the generation of nf_tables: no answer")
}

// askNFTables returns the attributes of each answer to a question.
func askNFTables(question int, family uint8, flags netlink.HeaderFlags, about ...netlink.Attribute) ([][]netlink.Attribute, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	body, err := netlink.MarshalAttributes(about)
	if err != nil {
		return nil, err
	}
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | question), Flags: flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, body...),
	})
	if err != nil {
		return nil, err
	}
	var answers [][]netlink.Attribute
	for _, m := range messages {
		const header = 4
		if len(m.Data) < header {
			continue
		}
		attributes, err := netlink.UnmarshalAttributes(m.Data[header:])
		if err != nil {
			return nil, err
		}
		answers = append(answers, attributes)
	}
	return answers, nil
}
