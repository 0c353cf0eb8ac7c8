package hops

import (
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// stack is the functions of this module on a call stack, outermost first.
type stack []call

// call is a function of this module.
type call struct {
	pkg  string // relative to internal
	name string // as "package.Function" or "package.Type.Method"
}

// trace calls f and returns the call stacks of what all goroutines allocated meanwhile, in the
// order in which they were first seen. Memory profiling must be off.
func trace(f func()) []stack {
	before := map[[32]uintptr]int64{}
	for _, r := range profile() {
		before[r.Stack0] += r.AllocObjects
	}
	runtime.MemProfileRate = 1 // record every allocation
	f()
	runtime.MemProfileRate = 0
	records := profile()
	during := map[[32]uintptr]int64{}
	for _, r := range records {
		during[r.Stack0] += r.AllocObjects
	}
	var stacks []stack
	for _, r := range slices.Backward(records) { // the runtime lists the newest stack first
		whole := r.Stack0[len(r.Stack0)-1] == 0
		if s := ours(r.Stack()); whole && len(s) > 0 && during[r.Stack0] > before[r.Stack0] {
			stacks = append(stacks, s)
		}
	}
	return stacks
}

// profile returns the memory profile with everything that was allocated so far: the runtime
// completes it with the second garbage collection.
func profile() []runtime.MemProfileRecord {
	runtime.GC()
	runtime.GC()
	for n := 1024; ; n *= 2 {
		records := make([]runtime.MemProfileRecord, n)
		if n, ok := runtime.MemProfile(records, true); ok {
			return records[:n]
		}
	}
}

// ours returns the functions of this module, without those of tests.
func ours(pcs []uintptr) stack {
	frames := runtime.CallersFrames(pcs)
	var s stack
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		name, ok := strings.CutPrefix(f.Function, "sluice/internal/")
		if ok && !strings.HasPrefix(name, "archtest/") && !strings.HasSuffix(f.File, "_test.go") {
			s = append(s, newCall(name))
		}
	}
	slices.Reverse(s)
	return s
}

var (
	typeArguments = regexp.MustCompile(`\[.*\]`)
	withinAnother = regexp.MustCompile(`(\.func\d+|\.\d+|-fm|-range\d+)+$`)
)

// newCall makes "differ.Differ.Apply" of "dataplane/differ.(*Differ[...]).Apply". A function
// within another one counts as that.
func newCall(name string) call {
	name = withinAnother.ReplaceAllString(typeArguments.ReplaceAllString(name, ""), "")
	name = strings.NewReplacer("(*", "", ")", "").Replace(name)
	last := strings.LastIndex(name, "/") + 1
	pkg, _, _ := strings.Cut(name[last:], ".")
	return call{name[:last] + pkg, name[last:]}
}
