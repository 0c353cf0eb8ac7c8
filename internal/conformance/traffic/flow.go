package traffic

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sluice/internal/proxy"
)

// Flow is one new connection to try, from a fresh source port.
type Flow struct {
	Protocol proxy.Protocol
	Src      netip.Addr
	Dst      netip.AddrPort
	Patience time.Duration // how long no answer is not yet silence
}

// Fate is what became of a connection.
type Fate uint8

// The fates.
const (
	Silent   Fate = iota // nobody said anything
	Answered             // a listener answered
	Refused              // by an ICMP port-unreachable message
	Reset                // by a TCP reset
	Broken               // something else, see Seen.Err
)

// String returns the fate in lower case.
func (f Fate) String() string {
	return [...]string{Silent: "silence", Answered: "answered", Refused: "refused", Reset: "reset", Broken: "broken"}[f]
}

// Seen is what the client of a flow saw.
type Seen struct {
	Fate Fate
	Answer
	Err error // why it is Broken
}

// String returns the observation in words.
func (s Seen) String() string {
	switch s.Fate {
	case Answered:
		return fmt.Sprintf("answered by %v, which saw %v", s.By, s.Client)
	case Broken:
		return "broken: " + s.Err.Error()
	default:
		return s.Fate.String()
	}
}

// Answer is what a listener sends to its client, as "ip:port client-ip".
type Answer struct {
	By     netip.AddrPort // who answered
	Client netip.Addr     // which client it saw
}

// maxAnswer is more than the bytes of any answer.
const maxAnswer = 128

func (a Answer) marshal() []byte {
	b := a.By.AppendTo(make([]byte, 0, maxAnswer))
	return append(a.Client.AppendTo(append(b, ' ')), '\n')
}

// parseAnswer is the reverse of marshal.
func parseAnswer(text []byte) (Answer, error) {
	by, client, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	var a Answer
	var err error
	if a.By, err = netip.ParseAddrPort(by); err != nil {
		return a, fmt.Errorf("read answer %q: %w", text, err)
	}
	if a.Client, err = netip.ParseAddr(client); err != nil {
		return a, fmt.Errorf("read answer %q: %w", text, err)
	}
	return a, nil
}
