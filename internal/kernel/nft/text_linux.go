package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Text returns the nft command for an operation that adds a table, chain, set or element.
// It panics for other operations; for rules, use [ListedRule.Text].
func (o *Op) Text() string {
	switch o.Kind {
	case AddTable:
		return fmt.Sprintf("add %v { comment %q; }", o.Table, tableComment)
	case AddChain:
		return o.Chain.text(o.Table)
	case AddSet:
		return o.Set.text()
	case AddElement:
		return fmt.Sprintf("add element %s { %s }", o.Table.named(o.Set.Name), o.Set.elementText(o.Element))
	default:
		panic(fmt.Sprintf("%v has no text", o))
	}
}

// named returns the full name of an object in the table, as commands need it.
func (t Table) named(name string) string { return fmt.Sprintf("%v %s %s", t.Family, t.Name, name) }

func (c *Chain) text(t Table) string {
	text := "add chain " + t.named(c.Name)
	if h := c.Hook; h != nil {
		hooks := [...]string{"prerouting", "input", "forward", "output", "postrouting"}
		text += fmt.Sprintf(" { type %s hook %s priority %d; policy accept; }", h.Type, hooks[h.Number], h.Priority)
	}
	return text
}

func (s *Set) text() string {
	kind, of := "set", typesText(s.Key)
	switch {
	case s.Key == nil: // a set that is not ours, of which only the name is known
		return "add set " + s.Table.named(s.Name)
	case s.Verdicts:
		kind, of = "map", of+" : verdict"
	case s.Data != nil:
		kind, of = "map", of+" : "+typesText(s.Data)
	}
	text := fmt.Sprintf("add %s %s { type %s;", kind, s.Table.named(s.Name), of)
	if s.Dynamic {
		text += " flags dynamic,timeout;"
	}
	if s.Size > 0 {
		text += fmt.Sprintf(" size %d;", s.Size)
	}
	return text + fmt.Sprintf(" comment %q; }", s.Comment)
}

var typeNames = [...]string{
	IPv4Addr: "ipv4_addr", IPv6Addr: "ipv6_addr", Proto: "inet_proto", Port: "inet_service", Mark: "mark", ClassID: "classid",
}

func typesText(types []Type) string {
	var names []string
	for _, t := range types {
		names = append(names, typeNames[t])
	}
	return strings.Join(names, " . ")
}

func (s *Set) elementText(e Element) string {
	text := partsText(s.Key, e.Key)
	if e.Key == "" {
		text = "*"
	}
	switch {
	case e.Verdict.Chain != "":
		return text + " : goto " + e.Verdict.Chain
	case e.Verdict.Code == Accept:
		return text + " : accept"
	case e.Verdict.Code != 0:
		return text + " : drop"
	case s.Data != nil:
		return text + " : " + partsText(s.Data, e.Data)
	default:
		return text
	}
}

// partsText returns the text of a key or value, whose parts are padded to registers.
func partsText(types []Type, data string) string {
	var parts []string
	at := 0
	for _, t := range types {
		end := at + t.Len()
		if end > len(data) {
			return fmt.Sprintf("%#x", data) // it does not fit the set's type
		}
		parts = append(parts, t.text([]byte(data[at:end])))
		at = (end + 3) &^ 3
	}
	return strings.Join(parts, " . ")
}

var protocolNames = map[byte]string{
	unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp",
	unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "ipv6-icmp",
}

// text returns the text of a value, which has the length of the type.
func (t Type) text(b []byte) string {
	switch t {
	case IPv4Addr, IPv6Addr:
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	case Proto:
		if name := protocolNames[b[0]]; name != "" {
			return name
		}
		return fmt.Sprint(b[0])
	case Port:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case ClassID:
		return classText(binary.NativeEndian.Uint32(b))
	default:
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(b))
	}
}

// classText returns a number as nft prints a packet's priority: as two halves, except for
// two values that have names.
func classText(n uint32) string {
	switch n {
	case 0:
		return "none"
	case 1<<32 - 1:
		return "root"
	default:
		return fmt.Sprintf("%x:%x", n>>16, n&0xffff)
	}
}
