package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice/internal/proxy"
)

// Flow is one new connection to try, from a fresh source port.
type Flow struct {
	Protocol proxy.Protocol
	Src      netip.Addr
	Dst      netip.AddrPort
	Patience time.Duration // how long no answer is not yet silence; see Scaled
	Socket

	// BeforeClose is called with the socket before it is closed, in the namespace. It may be nil.
	BeforeClose func(fd int)
}

// Socket says how a program makes and uses a flow's socket. The zero value is bound
// to the source and connected.
type Socket struct {
	Unbound     bool // the kernel chooses the source
	Mapped      bool // IPv4 through a socket of IPv6, as dual-stack programs do
	Unconnected bool // UDP: each datagram says where it goes
	Multipath   bool // TCP: MPTCP, if the kernel has it
}

// TimeoutScale is the variable of the environment that says how many times as
// long a time-out is on a slow machine.
const TimeoutScale = "LAB_TIMEOUT_SCALE"

// Scaled returns a time-out as long as it is on this machine.
func Scaled(d time.Duration) time.Duration {
	n, err := strconv.ParseUint(cmp.Or(os.Getenv(TimeoutScale), "1"), 10, 16)
	if err != nil {
		panic(fmt.Errorf("read %s: %w", TimeoutScale, err))
	}
	return time.Duration(n) * d
}

// Fate is what became of a connection.
type Fate uint8

const (
	Silent   Fate = iota // nobody said anything
	Answered             // a listener answered
	Refused              // by an ICMP port-unreachable message
	Reset                // by a TCP reset
	Broken               // something else, see Seen.Err
)

func (f Fate) String() string {
	return [...]string{Silent: "silence", Answered: "answered", Refused: "refused", Reset: "reset", Broken: "broken"}[f]
}

// Seen is what the client of a flow saw.
type Seen struct {
	Fate Fate
	Answer
	Err error // why it is Broken
}

func (s Seen) String() string {
	switch s.Fate {
	case Answered:
		return fmt.Sprintf("answered by %v, which saw %v", s.By, s.Client)
	case Broken:
		return "broken: " + s.Err.Error()
	}
	return s.Fate.String()
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

func parseAnswer(text []byte) (Answer, error) {
	own, saw, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	by, err := netip.ParseAddrPort(own)
	client, err2 := netip.ParseAddr(saw)
	if err := errors.Join(err, err2); err != nil {
		return Answer{}, fmt.Errorf("read answer %q: %w", text, err)
	}
	return Answer{by, client}, nil
}
