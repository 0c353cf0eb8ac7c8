package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// hardened are the capabilities that docs/security.md names, and the seccomp
// profile, by mode.
var hardened = []struct {
	mode, profile string
	capabilities  []string
}{
	{"nftables", "sluice.json", []string{"net_admin"}},
	{"iptables", "sluice.json", []string{"net_admin", "net_raw"}},
	{testbed.Legacy, "sluice.json", []string{"net_admin", "net_raw"}},
	{"userspace", "sluice.json", []string{"net_admin", "net_bind_service"}},
	{"ebpf", "sluice-ebpf.json", []string{"net_admin", "bpf", "perfmon"}},
}

var capabilityBits = map[string]int{
	"net_admin": unix.CAP_NET_ADMIN, "net_raw": unix.CAP_NET_RAW, "net_bind_service": unix.CAP_NET_BIND_SERVICE,
	"bpf": unix.CAP_BPF, "perfmon": unix.CAP_PERFMON,
}

// confinement is how a container runtime starts the daemon: the root file system
// is read-only but for the folder of the socket, and /proc/sys is.
const confinement = `set -e
mount --make-rprivate /
mount -t tmpfs none /run
mkdir -p "$2"
mount --bind "$2" "$2"
touch /run/xtables.lock
mount --bind /run/xtables.lock /run/xtables.lock
mount -o remount,bind,ro /run
mount -o remount,bind,ro /
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
bound=$1
shift 2
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$bound" "$@"
`

// TestHardened runs the daemon with the capabilities, the seccomp profile and the
// read-only root that are documented, through its life: it starts, forwards, follows
// a change, restarts, and removes what it has made.
func TestHardened(t *testing.T) {
	for _, tt := range hardened {
		t.Run(tt.mode, func(t *testing.T) {
			bed := testbed.NewFor(t, tt.mode)
			wrap := confined(bed, tt.profile, tt.capabilities)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Listen(proxy.UDP, testbed.PodA)
			bed.Write("udp.yaml", strings.ReplaceAll(testbed.Service("udp", testbed.SecondIP, testbed.PodA), "name: http", "name: udp, protocol: UDP"))
			d := bed.Start(wrap)
			testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			testbed.Eventually(t, "the Service at a UDP port that only some may bind", func() bool {
				by, fate := bed.AskBy(proxy.UDP, testbed.ClientIP, testbed.SecondIP)
				return fate == traffic.Answered && by == testbed.PodA
			})
			wantConfined(d, tt.capabilities)
			if tt.mode == testbed.Legacy && !strings.Contains(d.Log(), `variant="legacy"`) {
				t.Error("it does not use the variant")
			}
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
			testbed.Eventually(t, "the change", bed.Answers(testbed.ClusterIP, testbed.PodB))
			testbed.Eventually(t, "a status without errors, such as what it cannot remove", func() bool {
				var n statusapi.Node
				err := statusapi.AtSocket(bed.Socket).Get(t.Context(), statusapi.NodePath, nil, &n)
				return err == nil && n.InForce()
			})
			if code := d.End(syscall.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			d = bed.Start(wrap)
			testbed.Eventually(t, "the change meanwhile", bed.Answers(testbed.ClusterIP, testbed.PodA))
			if code := d.End(syscall.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
			d = bed.Start(wrap, "--cleanup")
			if code := d.Wait(); code != 0 {
				t.Errorf("exit code %d of the cleanup", code)
			}
			if bed.Answers(testbed.ClusterIP, testbed.PodA)() {
				t.Error("the Service answers after the cleanup")
			}
		})
	}
}

// wantConfined wants the kernel to have the process confined.
func wantConfined(d *testbed.Daemon, capabilities []string) {
	d.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Cmd.Process.Pid))
	if err != nil {
		d.T.Fatal(err)
	}
	bits := uint64(0)
	for _, c := range capabilities {
		bits |= 1 << capabilityBits[c]
	}
	for _, want := range []string{
		"NoNewPrivs:\t1", "Seccomp:\t2", fmt.Sprintf("CapEff:\t%016x", bits), fmt.Sprintf("CapPrm:\t%016x", bits), fmt.Sprintf("CapBnd:\t%016x", bits),
	} {
		if !strings.Contains(string(text), want+"\n") {
			d.T.Errorf("the process is not confined as it should be: no %q in\n%s", want, text)
		}
	}
}

// confined returns how the daemon is started with so many privileges and no more.
func confined(bed *testbed.Testbed, file string, capabilities []string) func(*exec.Cmd) {
	bed.T.Helper()
	p, err := readProfile(file)
	if err != nil {
		bed.T.Fatal(err)
	}
	filter, err := p.compile()
	if err != nil {
		bed.T.Fatal(err)
	}
	self, variable := testbed.Confined(bed.T, filter)
	bound := "-all,+" + strings.Join(capabilities, ",+")
	return func(cmd *exec.Cmd) {
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			bed.T.Fatal(err)
		}
		cmd.Env = append(os.Environ(), variable)
		inner := []string{"unshare", "--mount", "sh", "-c", confinement, "sh", bound, filepath.Dir(bed.Socket), self, cmd.Path}
		cmd.Path, cmd.Args = unshare, append(inner, cmd.Args[1:]...)
	}
}

// TestSeccompProfiles wants the profiles to be what they seem: the one of mode ebpf
// has what bpf needs and nothing else more, and neither allows what would lead out
// of a container.
func TestSeccompProfiles(t *testing.T) {
	base, err := readProfile("sluice.json")
	if err != nil {
		t.Fatal(err)
	}
	ebpf, err := readProfile("sluice-ebpf.json")
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(p profile) (names []string) {
		for _, r := range p.Syscalls {
			if r.Action == "SCMP_ACT_ALLOW" {
				names = append(names, r.Names...)
			}
		}
		return names
	}
	for _, name := range allowed(ebpf) {
		if !slices.Contains(allowed(base), name) && name != "bpf" {
			t.Errorf("only the profile of mode ebpf allows %s", name)
		}
	}
	for _, p := range []profile{base, ebpf} {
		for _, name := range []string{"mount", "ptrace", "init_module", "finit_module", "kexec_load", "setns", "unshare", "pivot_root", "keyctl", "userfaultfd", "io_uring_setup", "process_vm_writev", "reboot"} {
			if slices.Contains(allowed(p), name) {
				t.Errorf("%s is allowed", name)
			}
		}
	}
	arch, numbers, err := systemCalls()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range allowed(ebpf) {
		if _, known := numbers[name]; !known && arch == unix.AUDIT_ARCH_X86_64 {
			t.Errorf("%s is no system call", name)
		}
	}
}

// TestPrivilegesAreDocumented wants the page to say what TestHardened tries.
func TestPrivilegesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hardened {
		mode := strings.TrimSuffix(h.mode, "-legacy")
		line := fmt.Sprintf("| %s | %s | %s |\n", mode, strings.ToUpper(strings.Join(h.capabilities, ", ")), h.profile)
		if !strings.Contains(string(page), line) {
			t.Errorf("docs/security.md does not have %q", line)
		}
	}
}

// TestSeccompRefuses sees that a filter made of the profile is in force at all.
func TestSeccompRefuses(t *testing.T) {
	bed := testbed.New(t)
	wrap := confined(bed, "sluice.json", []string{"net_admin", "sys_admin"})
	cmd := exec.Command("/usr/bin/unshare", "--uts", "true")
	wrap(cmd)
	out, err := cmd.CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || !strings.Contains(string(out), unix.EPERM.Error()) && !strings.Contains(strings.ToLower(string(out)), "not permitted") {
		t.Errorf("unshare within: error %v, it says %q", err, out)
	}
}

// TestWithoutPermission says what is missing, exits with 1 and changes nothing.
func TestWithoutPermission(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	path := testbed.Binary(t)
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(bed.Dir), bed.Dir} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := bed.Start(func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
	if code := d.Wait(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	lines := strings.Split(strings.TrimSpace(d.Log()), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "Error: ") || !strings.Contains(last, "NET_ADMIN") {
		t.Errorf("the last line is %q", last)
	}
	if got := bed.Tables(); got != "" {
		t.Errorf("the kernel has %q", got)
	}
}

// TestLegacyOutOfReach starts with CAP_NET_ADMIN only, on a host whose rules are
// in iptables-legacy, whose programs need more. Rules in the other variant
// would not be what the host asks for; if the mode is open, another may do, and the
// daemon says that the host's rules may drop what it forwards.
func TestLegacyOutOfReach(t *testing.T) {
	for name, mode := range map[string]string{"iptables": "iptables", "open": ""} {
		t.Run(name, func(t *testing.T) { legacyOutOfReach(t, mode) })
	}
}

func legacyOutOfReach(t *testing.T, mode string) {
	bed := testbed.New(t)
	bed.Run("iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	bed.Run("iptables-legacy", "-t", "nat", "-A", "PREROUTING", "-p", "udp", "-j", "ACCEPT")
	bed.Run("iptables-legacy", "-A", "FORWARD", "-i", "cni0", "-j", "ACCEPT") // without it the host would not need the mode
	bed.Run("iptables-legacy", "-P", "FORWARD", "DROP")
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	d := bed.Start(func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"setpriv", "--bounding-set", "-all,+net_admin", "--inh-caps", "-all", cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.Err = exec.LookPath("setpriv")
	}, "--proxy-mode", mode)
	if mode == "" {
		testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	} else if code := d.Wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	want := "the rules of this host are in iptables-legacy: the programs of iptables-legacy need CAP_NET_RAW in addition to CAP_NET_ADMIN"
	if !strings.Contains(d.Log(), want) {
		t.Errorf("the log does not say that %s", want)
	}
	if strings.Contains(d.Log(), `variant="nft"`) {
		t.Error("the other variant of iptables was taken")
	}
}
