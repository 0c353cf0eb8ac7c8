package platform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sluice/internal/config"
	"sluice/internal/kernel/sysctl"
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

// Change is a setting that was changed.
type Change struct {
	Name     string // of a sysctl with slashes, else the path of a file
	Old, New int
}

// Problem is a setting that is not as it should be.
type Problem struct {
	Name string
	Want int
	Err  error
}

// String says what is wrong and what can be done about it.
func (p Problem) String() string {
	switch {
	case errors.Is(p.Err, fs.ErrNotExist):
		return fmt.Sprintf("%s cannot be %d: this kernel or network namespace has no such setting (is nf_conntrack loaded?)", p.Name, p.Want)
	case errors.Is(p.Err, syscall.EROFS):
		return fmt.Sprintf("%s cannot be %d: it is read-only here; set it on the host, or let this process write it", p.Name, p.Want)
	case errors.Is(p.Err, fs.ErrPermission):
		return fmt.Sprintf("%s cannot be %d: no permission; set it on the host, or give this process the capability for it", p.Name, p.Want)
	default:
		return fmt.Sprintf("%s cannot be %d: %v", p.Name, p.Want, p.Err)
	}
}

// Report is what came of settings.
type Report struct {
	Changes  []Change
	Problems []Problem
}

// Apply brings about what a configuration asks of the host, as far as it can. What is right already, or
// more than was wished for without saying that it must be exactly that, is not
// written. Settings of a network namespace are those of the calling thread's.
func Apply(ctx context.Context, k sysctl.Interface, c *config.Configuration) Report {
	var r Report
	for _, st := range plan(c, cpus(k)) {
		for next := &st; next != nil && ctx.Err() == nil; next = next.then {
			if !r.apply(k, next) {
				break
			}
		}
	}
	return r
}

// apply brings one setting about, and reports whether that went well.
func (r *Report) apply(k sysctl.Interface, s *setting) bool {
	old, err := sysctl.ReadInt(k, s.name)
	if err == nil {
		if old == s.want || old > s.want && !s.mayLower {
			return true
		}
		err = k.Write(s.name, strconv.Itoa(s.want))
	}
	if err != nil {
		r.Problems = append(r.Problems, Problem{Name: s.name, Want: s.want, Err: err})
		return false
	}
	r.Changes = append(r.Changes, Change{Name: s.name, Old: old, New: s.want})
	return true
}

// cpus counts the CPUs of the host. Those that this process may use are a
// poorer answer: its connections are the whole host's.
func cpus(k sysctl.Interface) int {
	if list, err := k.Read("/sys/devices/system/cpu/online"); err == nil {
		if n := countList(list); n > 0 {
			return n
		}
	}
	return runtime.NumCPU()
}

// countList counts what a list like "0-3,8" names; 0 if it is no such list.
func countList(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || to < from {
			return 0
		}
		n += to - from + 1
	}
	return n
}
