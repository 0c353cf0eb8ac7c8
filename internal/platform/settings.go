package platform

import (
	"reflect"
	"time"

	"sluice/internal/config"
)

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

// ofFields are the settings that a field of the configuration is for. Zero
// leaves the host's.
var ofFields = []struct{ field, name string }{
	{"conntrack.tcpEstablishedTimeout", tcpEstablished},
	{"conntrack.tcpCloseWaitTimeout", tcpCloseWait},
	{"conntrack.tcpBeLiberal", tcpBeLiberal},
	{"conntrack.udpTimeout", udpTimeout},
	{"conntrack.udpStreamTimeout", udpStream},
}

// maxFlows is the most that a number of CPUs alone can ask for: the table of a
// machine with hundreds of them would take gigabytes.
const maxFlows = 1 << 20

// setting is one value to bring about.
type setting struct {
	name     string
	want     int
	mayLower bool     // somebody asked for exactly this
	then     *setting // once that is so
}

// plan returns the settings to bring about, in order.
func plan(c *config.Configuration, cpus int) []setting {
	var out []setting
	if want, mayLower := flows(c, cpus); want > 0 {
		// With fewer than a bucket for four flows lookups grow slow.
		out = append(out, setting{conntrackMax, want, mayLower, &setting{name: conntrackHash, want: want / 4}})
	}
	for _, f := range ofFields {
		if want := number(config.At(c.Object, f.field)); want > 0 {
			out = append(out, setting{name: f.name, want: want, mayLower: c.Explicit(f.field)})
		}
	}
	return append(out, setting{name: oomScoreAdj, want: int(*c.Object.OOMScoreAdj), mayLower: true})
}

// number returns what to write for a switch or a time, which is in seconds,
// rounded up.
func number(v reflect.Value) int {
	if v = reflect.Indirect(v); v.Kind() == reflect.Bool {
		return map[bool]int{true: 1}[v.Bool()]
	}
	return int((time.Duration(v.Field(0).Int()) + time.Second - 1) / time.Second)
}

// flows returns how many flows to make room for, and whether there may be more
// room than that now.
func flows(c *config.Configuration, cpus int) (n int, mayLower bool) {
	perCore, least := int(*c.Object.Conntrack.MaxPerCore), int(*c.Object.Conntrack.Min)
	if perCore <= 0 {
		return 0, false
	}
	scaled := perCore * cpus
	return max(min(scaled, maxFlows), least), c.Explicit("conntrack.maxPerCore") && scaled <= maxFlows
}
