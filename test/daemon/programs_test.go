package daemon

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// instead puts a script before one of the host's programs, for the daemon only.
// The script finds the program itself as $REAL.
func (s *site) instead(program, script string) func(*exec.Cmd) {
	s.t.Helper()
	real, err := exec.LookPath(program)
	if err != nil {
		s.t.Fatal(err)
	}
	dir := s.t.TempDir()
	text := "#!/bin/sh\nREAL=" + real + "\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755); err != nil {
		s.t.Fatal(err)
	}
	return func(cmd *exec.Cmd) {
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	}
}

// TestStopLetsARestoreEnd sends SIGTERM to the daemon's process group while
// iptables-restore runs: what it was told is written to the end.
func TestStopLetsARestoreEnd(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	gate, began := filepath.Join(dir, "gate"), filepath.Join(dir, "began")
	change := s.instead("iptables-nft-restore",
		"if [ -e "+gate+" ]; then touch "+began+"; fi; while [ -e "+gate+" ]; do sleep 0.01; done; exec $REAL \"$@\"")
	s.write("web.yaml", service("web", clusterIP, podA))
	d := s.start(func(cmd *exec.Cmd) {
		change(cmd)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}, "--proxy-mode", "iptables")
	eventually(t, "the Service", s.answers(clusterIP, podA))
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.write("second.yaml", service("second", secondIP, podB))
	eventually(t, "the restore", func() bool {
		_, err := os.Stat(began)
		return err == nil
	})
	if err := syscall.Kill(-d.Cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	if code := d.wait(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if !s.answers(secondIP, podB)() {
		t.Error("the restore that was under way did not come to its end")
	}
}

// TestOneFamilyWithoutNAT runs on a node whose IPv6 has no table nat. The other
// family is served, the daemon is healthy, and both the log and the health
// report tell.
func TestOneFamilyWithoutNAT(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			s := newSite(t)
			s.run("iptables-"+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			without := s.instead("ip6tables-"+variant+"-restore", `input=$(cat)
case "$input" in *"*nat"*)
	echo "ip6tables-restore: line 1: can't initialize ip6tables table 'nat': Table does not exist (do you need to insmod?)" >&2
	exit 3;;
esac
printf '%s\n' "$input" | $REAL "$@"`)
			s.write("web.yaml", service("web", clusterIP, podA))
			s.write("six.yaml", service("six", clusterV6, podV6))
			d := s.start(without, "--proxy-mode", "iptables")
			eventually(t, "the IPv4 Service", s.answers(clusterIP, podA))
			var body string
			eventually(t, "health", func() (ok bool) {
				code, text, err := s.get("http://127.0.0.1:10256/healthz")
				body = text
				return err == nil && code == http.StatusOK
			})
			if !strings.Contains(body, `"IPv4"`) || strings.Contains(body, `"IPv6"`) {
				t.Errorf("health report %s; want a status of IPv4 only", body)
			}
			if n := strings.Count(d.log(), "Serving the other family only"); n != 1 || !strings.Contains(d.log(), "do you need to insmod?") {
				t.Errorf("the log says %d times that a family is not served", n)
			}
			if strings.Contains(d.log(), "Sync failed") {
				t.Error("syncs fail")
			}
		})
	}
}

// TestLegacyOutOfReach starts with CAP_NET_ADMIN only, on a host whose rules are
// in iptables-legacy, whose programs need more. Rules in the other variant
// would not be what the host asks for; if the mode is open, another may do.
func TestLegacyOutOfReach(t *testing.T) {
	for name, mode := range map[string]string{"iptables": "iptables", "open": ""} {
		t.Run(name, func(t *testing.T) { legacyOutOfReach(t, mode) })
	}
}

func legacyOutOfReach(t *testing.T, mode string) {
	s := newSite(t)
	s.run("iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	s.run("iptables-legacy", "-t", "nat", "-A", "PREROUTING", "-p", "udp", "-j", "ACCEPT")
	s.write("web.yaml", service("web", clusterIP, podA))
	d := s.start(func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"setpriv", "--bounding-set", "-all,+net_admin", "--inh-caps", "-all", cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.Err = exec.LookPath("setpriv")
	}, "--proxy-mode", mode)
	if mode == "" {
		eventually(t, "the Service", s.answers(clusterIP, podA))
	} else if code := d.wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	want := "the rules of this host are in iptables-legacy: the programs of iptables-legacy need CAP_NET_RAW in addition to CAP_NET_ADMIN"
	if !strings.Contains(d.log(), want) {
		t.Errorf("the log does not say that %s", want)
	}
	if strings.Contains(d.log(), `variant="nft"`) {
		t.Error("the other variant of iptables was taken")
	}
}
