package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// hardened are the capabilities that docs/security.md names, and the seccomp
// profile, by mode.
var hardened = []struct {
	name, mode, profile string
	capabilities        []string
}{
	{"nftables", "nftables", "sluice.json", []string{"net_admin"}},
	{"iptables", "iptables", "sluice.json", []string{"net_admin", "net_raw"}},
	{legacy, "iptables", "sluice.json", []string{"net_admin", "net_raw"}},
	{"userspace", "userspace", "sluice.json", []string{"net_admin", "net_bind_service"}},
	{"ebpf", "ebpf", "sluice-ebpf.json", []string{"net_admin", "bpf", "perfmon"}},
}

// legacy is where the rules of the host are written by the programs of that variant.
const legacy = "iptables-legacy"

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
		t.Run(tt.name, func(t *testing.T) {
			args, config := []string{"--proxy-mode", tt.mode}, lab.Config{}
			if tt.mode == "ebpf" {
				cgroup, bpf := bpfPlaces(t)
				args, config.Cgroup = append(args, "--cgroup-root", cgroup, "--bpf-root", bpf+"/sluice"), cgroup
			}
			s := newSiteIn(t, config)
			if tt.name == legacy {
				s.run(legacy, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			}
			wrap := s.confined(tt.profile, tt.capabilities)
			s.write("web.yaml", service("web", clusterIP, podA))
			udp, err := s.pods[podA].Listen(proxy.UDP, netip.AddrPortFrom(podA, 8080))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { udp.Close() })
			s.write("udp.yaml", strings.ReplaceAll(service("udp", secondIP, podA), "name: http", "name: udp, protocol: UDP"))
			d := s.start(wrap, args...)
			eventually(t, "the Service", s.answers(clusterIP, podA))
			eventually(t, "the Service at a UDP port that only some may bind", func() bool {
				by, fate := s.askBy(proxy.UDP, client, secondIP)
				return fate == traffic.Answered && by == podA
			})
			d.wantConfined(tt.capabilities)
			if tt.name == legacy && !strings.Contains(d.log(), `variant="legacy"`) {
				t.Error("it does not use the variant")
			}
			s.write("web.yaml", service("web", clusterIP, podB))
			eventually(t, "the change", s.answers(clusterIP, podB))
			if code := d.end(syscall.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
			s.write("web.yaml", service("web", clusterIP, podA))
			d = s.start(wrap, args...)
			eventually(t, "the change meanwhile", s.answers(clusterIP, podA))
			if code := d.end(syscall.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
			d = s.start(wrap, append(args, "--cleanup")...)
			if code := d.wait(); code != 0 {
				t.Errorf("exit code %d of the cleanup", code)
			}
			if s.answers(clusterIP, podA)() {
				t.Error("the Service answers after the cleanup")
			}
		})
	}
}

// wantConfined wants the kernel to have the process confined.
func (p *process) wantConfined(capabilities []string) {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	bits := uint64(0)
	for _, c := range capabilities {
		bits |= 1 << capabilityBits[c]
	}
	for _, want := range []string{
		"NoNewPrivs:\t1", "Seccomp:\t2", fmt.Sprintf("CapEff:\t%016x", bits), fmt.Sprintf("CapPrm:\t%016x", bits), fmt.Sprintf("CapBnd:\t%016x", bits),
	} {
		if !strings.Contains(string(text), want+"\n") {
			p.t.Errorf("the process is not confined as it should be: no %q in\n%s", want, text)
		}
	}
}

// bpfPlaces makes a cgroup for a lab, and a BPF file system.
func bpfPlaces(t *testing.T) (cgroup, bpf string) {
	t.Helper()
	lab.Require(t)
	cgroups, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroups.Close(); err != nil {
			t.Error(err)
		}
	})
	cgroup, err = cgroups.Add()
	if err != nil {
		t.Fatal(err)
	}
	if bpf, err = cgroups.MountBPF(); err != nil {
		t.Fatal(err)
	}
	return cgroup, bpf
}

// confined returns how the daemon is started with so many privileges and no more.
func (s *site) confined(file string, capabilities []string) func(*exec.Cmd) {
	s.t.Helper()
	p, err := readProfile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	filter, err := p.compile()
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := json.Marshal(filter)
	if err != nil {
		s.t.Fatal(err)
	}
	at := filepath.Join(s.t.TempDir(), "filter.json")
	if err := os.WriteFile(at, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	bound := "-all,+" + strings.Join(capabilities, ",+")
	return func(cmd *exec.Cmd) {
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			s.t.Fatal(err)
		}
		cmd.Env = append(os.Environ(), filterFile+"="+at)
		inner := []string{"unshare", "--mount", "sh", "-c", confinement, "sh", bound, filepath.Dir(s.socket), self, cmd.Path}
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
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hardened {
		line := fmt.Sprintf("| %s | %s | %s |\n", h.mode, strings.ToUpper(strings.Join(h.capabilities, ", ")), h.profile)
		if !strings.Contains(string(page), line) {
			t.Errorf("docs/security.md does not have %q", line)
		}
	}
}

// TestSeccompRefuses sees that a filter made of the profile is in force at all.
func TestSeccompRefuses(t *testing.T) {
	lab.Require(t)
	s := newSite(t)
	wrap := s.confined("sluice.json", []string{"net_admin", "sys_admin"})
	cmd := exec.Command("/usr/bin/unshare", "--uts", "true")
	wrap(cmd)
	out, err := cmd.CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || !strings.Contains(string(out), unix.EPERM.Error()) && !strings.Contains(strings.ToLower(string(out)), "not permitted") {
		t.Errorf("unshare within: error %v, it says %q", err, out)
	}
}
