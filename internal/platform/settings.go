package platform

import (
	"time"
)

// Settings are what the host should be like. The zero value leaves it as it is.
type Settings struct {
	Conntrack   Conntrack
	OOMScoreAdj *int // of this process; nil: as it is
}

// Conntrack are the sizes and time-outs of connection tracking.
type Conntrack struct {
	MaxPerCore     Wish[int] // flows for each CPU
	Min            Wish[int] // flows at least, if MaxPerCore is wished for at all
	TCPEstablished Wish[time.Duration]
	TCPCloseWait   Wish[time.Duration]
	TCPBeLiberal   bool // take packets outside the window for valid; false: as it is
	UDP            Wish[time.Duration]
	UDPStream      Wish[time.Duration]
}

// Wish is what a setting should be. Zero leaves it as it is.
type Wish[T int | time.Duration] struct {
	Value    T
	Explicit bool // somebody asked for exactly this: it may lower what is there
}

// The settings that may be changed.
const (
	conntrackMax   = "net/netfilter/nf_conntrack_max"
	conntrackHash  = "/sys/module/nf_conntrack/parameters/hashsize"
	tcpEstablished = "net/netfilter/nf_conntrack_tcp_timeout_established"
	tcpCloseWait   = "net/netfilter/nf_conntrack_tcp_timeout_close_wait"
	tcpBeLiberal   = "net/netfilter/nf_conntrack_tcp_be_liberal"
	udpTimeout     = "net/netfilter/nf_conntrack_udp_timeout"
	udpStream      = "net/netfilter/nf_conntrack_udp_timeout_stream"
	oomScoreAdj    = "/proc/self/oom_score_adj"
)

// maxFlows is the most that a number of CPUs alone can ask for: the table of a
// machine with hundreds of them would take gigabytes.
const maxFlows = 1 << 20

// setting is one value to bring about.
type setting struct {
	name     string
	want     int
	mayLower bool
	then     *setting // once that is so
}

// plan returns the settings to bring about, in order.
func (s Settings) plan(cpus int) []setting {
	var out []setting
	if want, mayLower := s.Conntrack.max(cpus); want > 0 {
		// With fewer than a bucket for four flows lookups grow slow.
		out = append(out, setting{conntrackMax, want, mayLower, &setting{name: conntrackHash, want: want / 4}})
	}
	timeout := func(name string, w Wish[time.Duration]) {
		if w.Value > 0 {
			seconds := int((w.Value + time.Second - 1) / time.Second)
			out = append(out, setting{name: name, want: seconds, mayLower: w.Explicit})
		}
	}
	timeout(tcpEstablished, s.Conntrack.TCPEstablished)
	timeout(tcpCloseWait, s.Conntrack.TCPCloseWait)
	if s.Conntrack.TCPBeLiberal {
		out = append(out, setting{name: tcpBeLiberal, want: 1})
	}
	timeout(udpTimeout, s.Conntrack.UDP)
	timeout(udpStream, s.Conntrack.UDPStream)
	if s.OOMScoreAdj != nil {
		out = append(out, setting{name: oomScoreAdj, want: *s.OOMScoreAdj, mayLower: true})
	}
	return out
}

// max returns how many flows to make room for, and whether there may be more
// room than that now.
func (c *Conntrack) max(cpus int) (flows int, mayLower bool) {
	if c.MaxPerCore.Value <= 0 {
		return 0, false
	}
	scaled := c.MaxPerCore.Value * cpus
	flows = max(min(scaled, maxFlows), c.Min.Value)
	return flows, c.MaxPerCore.Explicit && scaled <= maxFlows
}
