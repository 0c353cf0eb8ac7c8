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

// Memory is what a process occupies, in bytes.
type Memory struct {
	Resident  int64 // all of it
	Peak      int64 // the most that Resident ever was
	Anonymous int64 // without the pages of files, which the kernel can take back
}

// Memory asks the kernel what the process occupies.
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

// Sizes reads the lines with a size of a file such as /proc/meminfo, in bytes.
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

// tick is the unit in which the kernel reports the time of processors; it has
// been the same on every architecture of ours since there is one.
const tick = 10 * time.Millisecond

// CPU returns the time that the process and its children have spent on
// processors so far, also those that have ended. Whoever is of the process's
// group is such a child.
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
			continue // no process, or counted already
		}
		if s, err := readStat(entry.Name()); err == nil && s.group == int64(pid) {
			ticks += s.ticks // one that ends right now is its parent's in the next reading
		}
	}
	return time.Duration(ticks) * tick, nil
}

// stat is what the kernel says of a process.
type stat struct {
	group int64 // of processes
	ticks int64 // of it and its children that have ended
}

func readStat(pid string) (stat, error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(text))
}

// parseStat reads the group, and adds utime, stime, cutime and cstime. The name
// of the program may hold anything, so the fields are counted from the
// parenthesis that ends it.
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

// Settle waits until the process takes no more than little CPU time in a window,
// but no longer than limit.
func (p *Process) Settle(ctx context.Context, window, little, limit time.Duration) error {
	return settle(ctx, p.CPU, window, little, limit)
}

// SettleMachine waits until the machine has little to do, but not for long: the
// kernel goes on for a while after a node with many rules is gone.
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

// machineCPU returns the time that all processors of the machine have been busy.
func machineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the processors' time: %w", err)
	}
	// Fields 3 and 4 are idle time; those from 8 on are in others already.
	first, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(first)[1:]
	ticks, err := sum(slices.Concat(fields[:3], fields[5:8]))
	if err != nil {
		return 0, fmt.Errorf("read the processors' time: %w", err)
	}
	return time.Duration(ticks) * tick, nil
}

// LargestPeak returns the most resident bytes of the process or of its largest
// child, whichever is more. It waits for the process to end.
func (p *Process) LargestPeak() (int64, error) {
	<-p.done
	r, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, fmt.Errorf("read the usage of %s: the kernel did not say", p.Name)
	}
	return r.Maxrss << 10, nil
}
