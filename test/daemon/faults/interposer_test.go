package faults

import (
	byteorder "encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/test/daemon/testbed"
)

// interposer stands between a daemon, with the programs that it starts, and the
// kernel. It sees every system call by which a mode writes to the kernel and may let
// it fail, so no mode needs anything for it, and what fails is what would fail: a
// call.
type interposer struct {
	t        *testing.T
	listener int
	ended    chan struct{}

	mu    sync.Mutex
	fault *fault // nil: none
	spite *rand.Rand
	seen  map[seam]int // calls since the fault began
	hit   map[seam]int // those of them that it hit
}

// seam is where a daemon and the kernel meet.
type seam string

// The seams.
const (
	nftablesSeam  seam = "nf_tables"
	conntrackSeam seam = "conntrack"
	routesSeam    seam = "links, addresses and routes"
	ipvsSeam      seam = "IPVS"
	otherNetlink  seam = "netlink"
	receiveSeam   seam = "answers of netlink"
	bpfSeam       seam = "bpf"
	programSeam   seam = "programs"
	legacySeam    seam = "legacy tables"
	settingSeam   seam = "sysctl"
	socketSeam    seam = "sockets"
	acceptSeam    seam = "accept"
)

// kernelSeams are those by which a daemon tells the kernel what to do, and asks. The
// others are sockets, by which it answers.
var kernelSeams = []seam{
	nftablesSeam, conntrackSeam, routesSeam, ipvsSeam, otherNetlink, receiveSeam, bpfSeam, programSeam, legacySeam, settingSeam,
}

// fault is what happens to calls.
type fault struct {
	name   string
	share  float64       // of the calls that it happens to
	errnos []unix.Errno  // one of which a call fails with; nil: it does not fail
	half   bool          // the kernel gets the first half of what is sent
	delay  time.Duration // before anything else
	at     []seam        // nil: at all of them

	over chan struct{} // closed when it ends: what is stuck goes on
}

// interposed are the calls that are looked at. Those of receiving are, but for the
// ones of sockets that a network poller waits for.
var interposed = []uint32{
	unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG, unix.SYS_BPF, unix.SYS_EXECVE,
	unix.SYS_OPENAT, unix.SYS_SETSOCKOPT, unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_ACCEPT4, unix.SYS_SPLICE, unix.SYS_PIPE2,
}

// notifying returns the filter that has the kernel ask about them.
func notifying() []unix.SockFilter {
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	out := []unix.SockFilter{testbed.LoadWord(testbed.ArchAt), testbed.JumpIfEqual(arch, 1, 0), testbed.Return(unix.SECCOMP_RET_ALLOW), testbed.LoadWord(testbed.NumberAt)}
	for i, n := range interposed {
		out = append(out, testbed.JumpIfEqual(n, uint8(len(interposed)-i), 0))
	}
	return append(out, testbed.Return(unix.SECCOMP_RET_ALLOW), testbed.Return(unix.SECCOMP_RET_USER_NOTIF))
}

// interpose returns an interposer, and what makes a command one that it is for.
func interpose(t *testing.T) (*interposer, func(*exec.Cmd)) {
	t.Helper()
	self, variable := testbed.Confined(t, notifying())
	in := &interposer{t: t, ended: make(chan struct{}), spite: rand.New(rand.NewPCG(1, 2))}
	in.begin(nil)
	return in, func(cmd *exec.Cmd) {
		number, tellNumber, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		awaitTaken, taken, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(os.Environ(), variable)
		cmd.Args = append([]string{self, cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.ExtraFiles = self, []*os.File{tellNumber, awaitTaken}
		t.Cleanup(func() { // not before the command was started, which reads them
			for _, f := range append(cmd.ExtraFiles, number) {
				_ = f.Close()
			}
		})
		go in.run(number, taken)
	}
}

// run takes the listener of a process that begins, and decides about its calls
// until it has ended, and all that it started.
func (in *interposer) run(number, taken *os.File) {
	defer close(in.ended)
	var pid, fd int
	_, err := fmt.Fscan(number, &pid, &fd)
	if err == nil {
		in.listener, err = fdOf(pid, fd)
	}
	if err != nil {
		in.t.Errorf("take the listener of a daemon: %v", err)
		return
	}
	defer unix.Close(in.listener)
	_ = taken.Close()
	for {
		ready := []unix.PollFd{{Fd: int32(in.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR || ready[0].Revents&unix.POLLHUP != 0 {
			return
		}
		c := &call{}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(in.listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(c))); errno == 0 {
			in.decide(c)
		}
	}
}

// fdOf duplicates a file of another process.
func fdOf(pid, fd int) (int, error) {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(p)
	return unix.PidfdGetfd(p, fd, 0)
}

// call is struct seccomp_notif, answer is struct seccomp_notif_resp.
type call struct {
	id         uint64
	tid, flags uint32
	number     int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answer struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// begin lets a fault happen from now on; nil: none.
func (in *interposer) begin(f *fault) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.seen, in.hit = map[seam]int{}, map[seam]int{}
	if in.fault = f; f != nil {
		f.over = make(chan struct{})
	}
}

// end lets no fault happen any more, and returns how many calls there were, and how
// many of them were hit.
func (in *interposer) end() (seen, hit map[seam]int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	close(in.fault.over)
	in.fault = nil
	return in.seen, in.hit
}

// struck returns how many calls the fault has hit so far.
func (in *interposer) struck() (all int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, n := range in.hit {
		all += n
	}
	return all
}

// decide answers a call at once, or lets it wait.
func (in *interposer) decide(c *call) {
	f, errno := in.strikes(c)
	switch {
	case f == nil:
	case f.delay > 0:
		go func() {
			select {
			case <-time.After(f.delay):
			case <-f.over:
			}
			in.answer(c, errno)
		}()
		return
	case f.half && c.number == unix.SYS_SENDTO:
		c.sendHalf()
	}
	in.answer(c, errno)
}

// strikes returns the fault that a call is to have, and counts.
func (in *interposer) strikes(c *call) (*fault, unix.Errno) {
	in.mu.Lock()
	f := in.fault
	in.mu.Unlock()
	if f == nil {
		return nil, 0
	}
	at := c.seam()
	if at == "" {
		return nil, 0
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if f != in.fault { // It ended meanwhile, and what end returned is not ours any more.
		return nil, 0
	}
	in.seen[at]++
	if f.delay > 0 && at == programSeam {
		return nil, 0 // Go's runtime stands still until a program that it starts has begun.
	}
	if f.at != nil && !slices.Contains(f.at, at) || in.spite.Float64() >= f.share {
		return nil, 0
	}
	var errno unix.Errno
	if f.errnos != nil {
		if errno = f.errnos[in.spite.IntN(len(f.errnos))]; c.means(errno) {
			return nil, 0
		}
	}
	in.hit[at]++
	return f, errno
}

// answer lets the kernel go on with a call, or fail it. Who called may be gone.
func (in *interposer) answer(c *call, errno unix.Errno) {
	a := answer{id: c.id, err: -int32(errno)}
	if errno == 0 {
		a.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(in.listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
}

// seam returns where a call goes; empty: nowhere that is of interest.
func (c *call) seam() seam {
	switch c.number {
	case unix.SYS_BPF:
		return bpfSeam
	case unix.SYS_EXECVE:
		return programSeam
	case unix.SYS_OPENAT:
		if c.args[2]&unix.O_ACCMODE != unix.O_RDONLY && strings.HasPrefix(string(c.memory(c.args[1], 64)), "/proc/sys/net/") {
			return settingSeam
		}
		return ""
	case unix.SYS_SPLICE, unix.SYS_PIPE2:
		return socketSeam
	case unix.SYS_SOCKET:
		if c.args[0] == unix.AF_INET || c.args[0] == unix.AF_INET6 {
			return socketSeam
		}
		return ""
	case unix.SYS_ACCEPT4:
		return acceptSeam
	}
	return c.socketSeam()
}

// socketSeam is seam for calls whose first argument is a socket.
func (c *call) socketSeam() seam {
	domain, protocol := c.socket()
	switch {
	case domain == unix.AF_INET || domain == unix.AF_INET6:
		return map[int32]seam{unix.SYS_CONNECT: socketSeam, unix.SYS_SETSOCKOPT: c.option()}[c.number]
	case domain != unix.AF_NETLINK:
		return ""
	}
	switch c.number {
	case unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG:
		return receiveSeam
	case unix.SYS_SENDTO, unix.SYS_SENDMSG:
	default:
		return ""
	}
	switch protocol {
	case unix.NETLINK_ROUTE:
		return routesSeam
	case unix.NETLINK_GENERIC:
		return ipvsSeam
	case unix.NETLINK_NETFILTER:
		if c.number == unix.SYS_SENDTO && byteorder.NativeEndian.Uint16(c.memory(c.args[1], 6)[4:])>>8 == unix.NFNL_SUBSYS_CTNETLINK {
			return conntrackSeam
		}
		return nftablesSeam
	}
	return otherNetlink
}

// option returns what a call that sets an option of a socket is about: the rules
// of legacy tables are one.
func (c *call) option() seam {
	const replace = 64 // IPT_SO_SET_REPLACE, IP6T_SO_SET_REPLACE
	if level := c.args[1]; (level == unix.SOL_IP || level == unix.SOL_IPV6) && c.args[2] == replace {
		return legacySeam
	}
	return ""
}

// means reports whether an error would not be one, but an answer: that there is no
// such entry in a map.
func (c *call) means(errno unix.Errno) bool { return c.number == unix.SYS_BPF && errno == unix.ENOENT }

// process returns the process of the thread that called.
func (c *call) process() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.tid))
	if err != nil {
		return int(c.tid)
	}
	pid := 0
	if _, rest, ok := strings.Cut(string(text), "\nTgid:"); ok {
		_, _ = fmt.Sscan(rest, &pid)
	}
	return pid
}

// socket returns what socket the first argument is; zero: it is none.
func (c *call) socket() (domain, protocol int) {
	fd, err := fdOf(c.process(), int(c.args[0]))
	if err != nil {
		return 0, 0
	}
	defer unix.Close(fd)
	domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return 0, 0
	}
	protocol, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return domain, protocol
}

// memory reads what the caller has at an address, as much as can be read; the rest
// is zero.
func (c *call) memory(at uint64, n int) []byte {
	out := make([]byte, n)
	remote := []unix.RemoteIovec{{Base: uintptr(at), Len: n}}
	local := []unix.Iovec{{Base: &out[0]}}
	local[0].SetLen(n)
	_, _ = unix.ProcessVMReadv(int(c.tid), local, remote, 0)
	return out
}

// sendHalf sends the first half of the messages that a caller sends.
func (c *call) sendHalf() {
	all, end := c.memory(c.args[1], int(c.args[2])), 0
	for end < len(all)/2 {
		n := int(byteorder.NativeEndian.Uint32(all[end:])+3) &^ 3
		if n == 0 || end+n >= len(all) {
			break
		}
		end += n
	}
	fd, err := fdOf(c.process(), int(c.args[0]))
	if err != nil {
		return // who called is gone
	}
	defer unix.Close(fd)
	_ = unix.Sendto(fd, all[:end], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) // it fails in any case
}
