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

// sysctls are the settings that correspond to a field of the configuration. A zero
// field leaves the setting as it is.
var sysctls = []struct{ field, name string }{
	{"conntrack.tcpEstablishedTimeout", tcpEstablished},
	{"conntrack.tcpCloseWaitTimeout", tcpCloseWait},
	{"conntrack.tcpBeLiberal", tcpBeLiberal},
	{"conntrack.udpTimeout", udpTimeout},
	{"conntrack.udpStreamTimeout", udpStream},
}

// maxScaledFlows limits the size of the connection tracking table that results from
// the number of CPUs: with hundreds of them, the table would take gigabytes.
const maxScaledFlows = 1 << 20

// sysctlValue returns the number to write for a field: 0 or 1 for a boolean, and
// seconds, rounded up, for a duration.
func sysctlValue(v reflect.Value) int {
	if v = reflect.Indirect(v); v.Kind() == reflect.Bool {
		return map[bool]int{true: 1}[v.Bool()]
	}
	return int((time.Duration(v.Field(0).Int()) + time.Second - 1) / time.Second)
}

// conntrackSize returns the wanted maximum of tracked connections, 0 for none, and
// whether a larger current maximum may be lowered to it.
func conntrackSize(c *config.Configuration, cpus int) (n int, mayLower bool) {
	perCore, minimum := int(*c.Object.Conntrack.MaxPerCore), int(*c.Object.Conntrack.Min)
	if perCore <= 0 {
		return 0, false
	}
	scaled := perCore * cpus
	return max(min(scaled, maxScaledFlows), minimum), c.Explicit("conntrack.maxPerCore") && scaled <= maxScaledFlows
}

// Change is a setting that was changed.
type Change struct {
	Name     string // the name of a sysctl, with slashes, or the absolute path of a file
	Old, New int
}

// Problem is a setting that could not be read or written.
type Problem struct {
	Name string
	Want int
	Err  error
}

// String returns what failed, why, and what to do about it.
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
	return fmt.Sprintf("cannot set %s to %d: %s", p.Name, p.Want, why)
}

// Report is the result of changing settings.
type Report struct {
	Changes  []Change
	Problems []Problem
}

// Apply changes the settings of the host, and the process's OOM score, as the
// configuration asks. It does not write a setting that has the wanted value, or a
// larger one unless the configuration sets the value explicitly. Settings of a
// network namespace are those of the calling thread's namespace.
func Apply(ctx context.Context, k sysctl.Interface, c *config.Configuration) Report {
	var r Report
	if want, mayLower := conntrackSize(c, cpus(k)); want > 0 && r.apply(ctx, k, conntrackMax, want, mayLower) {
		// Lookups become slow with more than four flows per hash bucket.
		r.apply(ctx, k, conntrackHash, want/4, false)
	}
	for _, f := range sysctls {
		if want := sysctlValue(config.Field(c.Object, f.field)); want > 0 {
			r.apply(ctx, k, f.name, want, c.Explicit(f.field))
		}
	}
	r.apply(ctx, k, oomScoreAdj, int(*c.Object.OOMScoreAdj), true)
	return r
}

// CountBytes enables byte and packet counters of connections that start from now on.
func (r *Report) CountBytes(ctx context.Context, k sysctl.Interface) {
	r.apply(ctx, k, flowAccounting, 1, false)
}

// BeLiberal makes connection tracking accept TCP packets whose sequence numbers are
// outside the window. Otherwise rules do not translate such a packet of an endpoint, and
// its client, which does not know the endpoint's address, resets the connection.
func (r *Report) BeLiberal(ctx context.Context, k sysctl.Interface) {
	r.apply(ctx, k, tcpBeLiberal, 1, false)
}

// apply brings one setting to the wanted value, and reports whether it has it now, or
// a larger one. A larger value is lowered only with mayLower.
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

// cpus returns the number of the host's CPUs, because the connections are the
// host's. The number of those that this process may use is only the fallback.
func cpus(k sysctl.Interface) int {
	list, err := k.Read("/sys/devices/system/cpu/online")
	if err != nil {
		return runtime.NumCPU()
	}
	online, _ := cpuset.Parse(list) // empty on an error
	return cmp.Or(online.Size(), runtime.NumCPU())
}
