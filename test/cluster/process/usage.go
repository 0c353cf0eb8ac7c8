package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Memory is the memory of a process, in bytes.
type Memory struct {
	Resident  int64 // VmRSS
	Peak      int64 // maximum of Resident
	Anonymous int64 // without file pages, which the kernel can reclaim
}

// Memory returns the memory of the process.
func (p *Process) Memory() (Memory, error) {
	sizes, err := Sizes(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return Memory{}, fmt.Errorf("read the memory of %s: %w", p.Name, err)
	}
	m := Memory{Resident: sizes["VmRSS"], Peak: sizes["VmHWM"], Anonymous: sizes["RssAnon"]}
	if m.Resident == 0 {
		return m, fmt.Errorf("read the memory of %s: no VmRSS in its status", p.Name)
	}
	return m, nil
}

// Sizes returns the lines with a size of a file such as /proc/meminfo, in bytes.
func Sizes(path string) (map[string]int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if number, ok := strings.CutSuffix(strings.TrimSpace(value), " kB"); ok {
			kib, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("read %s of %s: %w", key, path, err)
			}
			out[key] = kib << 10
		}
	}
	return out, nil
}

// tick is the unit of CPU times in /proc (USER_HZ), the same on all architectures that we support.
const tick = 10 * time.Millisecond

// CPU returns the CPU time of the process and its children so far, including those that have ended.
// All processes of its process group count as children.
func (p *Process) CPU() (time.Duration, error) {
	pid := p.cmd.Process.Pid
	own, err := readStat(strconv.Itoa(pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of %s: %w", p.Name, err)
	}
	ticks := own.ticks
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("find the children of %s: %w", p.Name, err)
	}
	for _, entry := range all {
		n, err := strconv.Atoi(entry.Name())
		if err != nil || n == pid {
			continue // not a process, or already counted
		}
		if s, err := readStat(entry.Name()); err == nil && s.group == int64(pid) {
			ticks += s.ticks // one that is just ending is counted with its parent next time
		}
	}
	return time.Duration(ticks) * tick, nil
}

// stat is a part of /proc/PID/stat.
type stat struct {
	group int64 // process group
	ticks int64 // including children that have ended
}

func readStat(pid string) (stat, error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(text))
}

// parseStat reads the process group and adds up utime, stime, cutime and cstime. The program name
// may contain anything, so fields are counted from the parenthesis that ends it.
func parseStat(text string) (stat, error) {
	const group, first, last = 2, 11, 14 // after the parenthesis
	var s stat
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= last {
		return s, errors.New("too few fields")
	}
	var err error
	if s.group, err = strconv.ParseInt(fields[group], 10, 64); err != nil {
		return s, err
	}
	s.ticks, err = sum(fields[first : last+1])
	return s, err
}

func sum(fields []string) (total int64, err error) {
	for _, f := range fields {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// Settle waits until the process uses no more than little CPU time in a window, but no longer than
// limit.
func (p *Process) Settle(ctx context.Context, window, little, limit time.Duration) error {
	return settle(ctx, p.CPU, window, little, limit)
}

// SettleMachine waits up to 10 seconds until the machine is nearly idle: the kernel works for a
// while after a node with many rules was removed.
func SettleMachine(ctx context.Context) error {
	const window, limit = 500 * time.Millisecond, 10 * time.Second
	return settle(ctx, machineCPU, window, window*time.Duration(runtime.NumCPU())/10, limit)
}

func settle(ctx context.Context, cpu func() (time.Duration, error), window, little, limit time.Duration) error {
	for began := time.Now(); time.Since(began) < limit && ctx.Err() == nil; {
		before, err := cpu()
		if err != nil {
			return err
		}
		time.Sleep(window)
		after, err := cpu()
		if err != nil || after-before <= little {
			return err
		}
	}
	return ctx.Err()
}

// machineCPU returns the busy time of all processors.
func machineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the processors' time: %w", err)
	}
	// Fields 3 and 4 are idle time; guest times, from field 8 on, are included in others.
	first, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(first)[1:]
	ticks, err := sum(slices.Concat(fields[:3], fields[5:8]))
	if err != nil {
		return 0, fmt.Errorf("read the processors' time: %w", err)
	}
	return time.Duration(ticks) * tick, nil
}

// LargestPeak returns the maximum resident memory in bytes of the process or its largest child,
// whichever is more. It waits for the process to end.
func (p *Process) LargestPeak() (int64, error) {
	<-p.done
	r, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, fmt.Errorf("read the resource usage of %s: not available", p.Name)
	}
	return r.Maxrss << 10, nil
}
