package command

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sluice/test/daemon/testbed"
)

// profile is a seccomp profile as container runtimes read it.
type profile struct {
	DefaultAction   string        `json:"defaultAction"`
	DefaultErrnoRet uint32        `json:"defaultErrnoRet"`
	Architectures   []string      `json:"architectures"`
	Syscalls        []syscallRule `json:"syscalls"`
}

type syscallRule struct {
	Names    []string     `json:"names"`
	Action   string       `json:"action"`
	ErrnoRet uint32       `json:"errnoRet"`
	Args     []argumentIs `json:"args"`
}

// argumentIs is what an argument of a system call must be.
type argumentIs struct {
	Index    uint32 `json:"index"`
	Op       string `json:"op"`
	Value    uint64 `json:"value"`    // SCMP_CMP_MASKED_EQ: the mask
	ValueTwo uint64 `json:"valueTwo"` // and then the value
}

// readProfile reads one of those that are shipped.
func readProfile(file string) (p profile, err error) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "seccomp", file))
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(text, &p)
}

// action returns what the kernel is told to do.
func action(name string, errno uint32) (uint32, error) {
	switch name {
	case "SCMP_ACT_ALLOW":
		return unix.SECCOMP_RET_ALLOW, nil
	case "SCMP_ACT_ERRNO":
		return unix.SECCOMP_RET_ERRNO | errno, nil
	}
	return 0, fmt.Errorf("action %q is not known", name)
}

// compile makes a filter of a profile. The first rule that fits decides.
func (p *profile) compile() ([]unix.SockFilter, error) {
	arch, numbers, err := systemCalls()
	if err != nil {
		return nil, err
	}
	// Calls by the numbers of another architecture would be others.
	out := []unix.SockFilter{testbed.LoadWord(testbed.ArchAt), testbed.JumpIfEqual(arch, 1, 0), testbed.Return(unix.SECCOMP_RET_KILL_PROCESS)}
	for _, r := range p.Syscalls {
		then, err := action(r.Action, r.ErrnoRet)
		if err != nil {
			return nil, err
		}
		var matches []unix.SockFilter // a call that does not fit goes on after the block
		for i, a := range r.Args {
			left := uint8(3*(len(r.Args)-i-1) + 1) // to the end of the block
			mask, value := ^uint32(0), uint32(a.Value)
			if a.Op == "SCMP_CMP_MASKED_EQ" {
				mask, value = uint32(a.Value), uint32(a.ValueTwo)
			} else if a.Op != "SCMP_CMP_EQ" {
				return nil, fmt.Errorf("%v: comparison %q is not known", r.Names, a.Op)
			}
			matches = append(matches, testbed.LoadWord(testbed.ArgsAt+8*a.Index),
				unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask}, testbed.JumpIfEqual(value, 0, left))
		}
		block := append(matches, testbed.Return(then))
		for _, name := range r.Names {
			number, known := numbers[name]
			if !known {
				continue // as runtimes do: not every architecture has all calls
			}
			out = append(out, testbed.LoadWord(testbed.NumberAt), testbed.JumpIfEqual(number, 0, uint8(len(block))))
			out = append(out, block...)
		}
	}
	then, err := action(p.DefaultAction, p.DefaultErrnoRet)
	return append(out, testbed.Return(then)), err
}

// systemCalls returns the numbers of this architecture by name. They are read from
// the sources of a library, as none has them for a program to look up.
func systemCalls() (arch uint32, numbers map[string]uint32, err error) {
	arch, known := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !known {
		return 0, nil, fmt.Errorf("no system calls of %s are known", runtime.GOARCH)
	}
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		return 0, nil, err
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go"))
	if err != nil {
		return 0, nil, err
	}
	numbers = map[string]uint32{}
	for _, m := range regexp.MustCompile(`SYS_(\w+)\s+= (\d+)`).FindAllSubmatch(text, -1) {
		n, err := strconv.ParseUint(string(m[2]), 10, 32)
		if err != nil {
			return 0, nil, err
		}
		numbers[strings.ToLower(string(m[1]))] = uint32(n)
	}
	return arch, numbers, nil
}
