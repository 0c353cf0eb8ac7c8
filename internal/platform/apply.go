package platform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"sluice/internal/config"
	"sluice/internal/kernel/sysctl"
)

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
