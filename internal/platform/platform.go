package platform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"k8s.io/utils/cpuset"

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
	flowAccounting = "net/netfilter/nf_conntrack_acct"
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
	why := p.Err.Error()
	switch {
	case errors.Is(p.Err, fs.ErrNotExist):
		why = "this kernel or network namespace has no such setting (is nf_conntrack loaded?)"
	case errors.Is(p.Err, syscall.EROFS):
		why = "it is read-only here; set it on the host, or let this process write it"
	case errors.Is(p.Err, fs.ErrPermission):
		why = "no permission; set it on the host, or give this process the capability for it"
	}
	return fmt.Sprintf("%s cannot be %d: %s", p.Name, p.Want, why)
}

// Report is what came of settings.
type Report struct {
	Changes  []Change
	Problems []Problem
}

// Apply brings about what a configuration asks of the host, as far as it can.
// What is right already, or more than was wished for without saying that it must
// be exactly that, is not written. Settings of a network namespace are those of
// the calling thread's.
func Apply(ctx context.Context, k sysctl.Interface, c *config.Configuration) Report {
	var r Report
	if want, mayLower := flows(c, cpus(k)); want > 0 && r.apply(ctx, k, conntrackMax, want, mayLower) {
		// With fewer than a bucket for four flows lookups grow slow.
		r.apply(ctx, k, conntrackHash, want/4, false)
	}
	for _, f := range ofFields {
		if want := number(config.At(c.Object, f.field)); want > 0 {
			r.apply(ctx, k, f.name, want, c.Explicit(f.field))
		}
	}
	r.apply(ctx, k, oomScoreAdj, int(*c.Object.OOMScoreAdj), true)
	return r
}

// CountBytes has connections that begin from now on tell what they carry.
func (r *Report) CountBytes(ctx context.Context, k sysctl.Interface) {
	r.apply(ctx, k, flowAccounting, 1, false)
}

// apply brings one setting about, and reports whether that went well. It may
// lower what an operator has asked for exactly.
func (r *Report) apply(ctx context.Context, k sysctl.Interface, name string, want int, mayLower bool) bool {
	if ctx.Err() != nil {
		return false
	}
	old, err := sysctl.ReadInt(k, name)
	if err == nil {
		if old == want || old > want && !mayLower {
			return true
		}
		err = k.Write(name, strconv.Itoa(want))
	}
	if err != nil {
		r.Problems = append(r.Problems, Problem{Name: name, Want: want, Err: err})
		return false
	}
	r.Changes = append(r.Changes, Change{Name: name, Old: old, New: want})
	return true
}

// cpus counts the CPUs of the host. Those that this process may use are a
// poorer answer: its connections are the whole host's.
func cpus(k sysctl.Interface) int {
	list, err := k.Read("/sys/devices/system/cpu/online")
	if err != nil {
		return runtime.NumCPU()
	}
	online, _ := cpuset.Parse(list) // none if it is no such list
	return cmp.Or(online.Size(), runtime.NumCPU())
}
