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
	Patience time.Duration // how long to wait for an answer; Probe applies Scaled
	Socket

	// BeforeClose is called in the namespace before the socket is closed. It may be nil.
	BeforeClose func(fd int)
}

// Socket is how the socket of a flow is made and used. The zero value is bound to the source
// address and connected.
type Socket struct {
	Unbound     bool // the kernel chooses the source
	Mapped      bool // IPv4 through an IPv6 socket, as in dual-stack programs
	Unconnected bool // UDP: sendto instead of connect
	Multipath   bool // TCP: use MPTCP if the kernel has it
}

// TimeoutScale is the environment variable with the factor by which timeouts are multiplied on a
// slow machine.
const TimeoutScale = "LAB_TIMEOUT_SCALE"

// Scaled returns a timeout multiplied by TimeoutScale.
func Scaled(d time.Duration) time.Duration {
	n, err := strconv.ParseUint(cmp.Or(os.Getenv(TimeoutScale), "1"), 10, 16)
	if err != nil {
		panic(fmt.Errorf("read %s: %w", TimeoutScale, err))
	}
	return time.Duration(n) * d
}

// Fate is the result of a connection attempt.
type Fate uint8

const (
	Silent   Fate = iota // no answer within the timeout
	Answered             // a listener answered
	Refused              // ICMP port unreachable
	Reset                // TCP reset
	Broken               // something else, see Seen.Err
)

func (f Fate) String() string {
	return [...]string{Silent: "silence", Answered: "answered", Refused: "refused", Reset: "reset", Broken: "broken"}[f]
}

// Seen is what the client of a flow observed.
type Seen struct {
	Fate Fate
	Answer
	Err error // if Broken
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
	By     netip.AddrPort // the address that was reached
	Client netip.Addr     // the client address it saw
}

// maxAnswer exceeds the length of any answer.
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
