package testbed

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filterFile is the environment variable by which [Main] is told to confine the test program by the
// seccomp filter in a file, and to become the program that its arguments name.
const filterFile = "SLUICE_TEST_SECCOMP_FILTER"

// Confined returns the program and the environment variable that run another program, named by the
// arguments, under a seccomp filter. If the filter notifies, the program tells the number of its
// listener over file 3, and begins when file 4 is closed.
func Confined(t *testing.T, filter []unix.SockFilter) (program, variable string) {
	t.Helper()
	text, err := json.Marshal(filter)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "filter.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if program, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	return program, filterFile + "=" + file
}

// confine becomes another program under a filter. It returns only an error.
func confine(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var filter []unix.SockFilter
	if err := json.Unmarshal(text, &filter); err != nil {
		return err
	}
	if err := os.Unsetenv(filterFile); err != nil {
		return err
	}
	flags := unix.SECCOMP_FILTER_FLAG_TSYNC
	notifies := slices.Contains(filter, Return(unix.SECCOMP_RET_USER_NOTIF))
	if notifies {
		flags |= unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&prog)))
	if errno == unix.EINVAL && notifies { // before Linux 5.19 a signal has the kernel ask once more
		flags &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		listener, _, errno = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&prog)))
	}
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if notifies {
		if err := handOver(listener); err != nil {
			return err
		}
	}
	return syscall.Exec(os.Args[1], slices.Clone(os.Args[1:]), os.Environ())
}

// handOver lets the test take the listener, whose number it is told.
func handOver(listener uintptr) error {
	tell, taken := os.NewFile(3, "tell"), os.NewFile(4, "taken")
	if _, err := fmt.Fprintf(tell, "%d %d\n", os.Getpid(), listener); err != nil {
		return err
	}
	_, err := io.ReadAll(taken)
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	return err
}

// Where the kernel has what a filter looks at, in struct seccomp_data.
const (
	NumberAt = 0
	ArchAt   = 4
	ArgsAt   = 16 // 64 bits each, the lower half first
)

// LoadWord is the instruction of a filter that loads 32 bits.
func LoadWord(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
}

// JumpIfEqual is the one that skips jt instructions if what was loaded equals k, and jf if not.
func JumpIfEqual(k uint32, jt, jf uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: jt, Jf: jf}
}

// Return is the one that ends a filter and says what becomes of the call.
func Return(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
