package process

import (
	"errors"
	"fmt"
	"os"
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
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return Memory{}, fmt.Errorf("read the memory of %s: %w", p.Name, err)
	}
	var m Memory
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			continue // a line without a size
		}
		switch key {
		case "VmRSS":
			m.Resident = kib << 10
		case "VmHWM":
			m.Peak = kib << 10
		case "RssAnon":
			m.Anonymous = kib << 10
		}
	}
	if m.Resident == 0 {
		return m, fmt.Errorf("read the memory of %s: no VmRSS in its status", p.Name)
	}
	return m, nil
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
	sum := own.ticks
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
			sum += s.ticks // one that ends right now is its parent's in the next reading
		}
	}
	return time.Duration(sum) * tick, nil
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
	for _, f := range fields[first : last+1] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return s, err
		}
		s.ticks += n
	}
	return s, nil
}

// Usage is what a process that has ended had used.
type Usage struct {
	CPU  time.Duration // with children
	Peak int64         // resident bytes of the process or of its largest child, whichever is more
}

// Usage returns what the process used. It must have ended.
func (p *Process) Usage() (Usage, error) {
	<-p.done
	s := p.cmd.ProcessState
	if s == nil {
		return Usage{}, fmt.Errorf("read the usage of %s: nobody waited for it", p.Name)
	}
	u := Usage{CPU: s.UserTime() + s.SystemTime()}
	if r, ok := s.SysUsage().(*syscall.Rusage); ok {
		u.Peak = r.Maxrss << 10
	}
	return u, nil
}
