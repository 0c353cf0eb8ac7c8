package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAttack runs another process that continuously writes and flushes rules, and kills daemons at
// any moment, while endpoints change. Afterwards the rules equal a fresh rendering.
func TestAttack(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			s := newSite(t)
			s.run("iptables-"+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			s.write("web.yaml", service("web", clusterIP, podA))
			s.write("six.yaml", service("six", clusterV6, podV6))
			s.write("kinds.yaml", kinds)
			t.Run("under attack", func(t *testing.T) {
				s := *s
				s.t = t
				s.churn()
				s.loop("for p in iptables ip6tables; do $p-" + variant + " -w -t nat -A PREROUTING -p udp -j ACCEPT; " +
					"$p-" + variant + " -w -t nat -D PREROUTING -p udp -j ACCEPT; done")
				for i := range 6 {
					d := s.start(nil, "--proxy-mode", "iptables")
					if i%2 == 0 {
						eventually(t, "the Service", s.answers(clusterIP, podA))
						s.run("sh", "-c", "for p in iptables ip6tables; do for t in nat filter mangle; do $p-"+variant+" -w -t $t -F; done; done")
						eventually(t, "the Service after a flush", s.answers(clusterIP, podA))
						eventually(t, "the IPv6 Service after a flush", s.answers(clusterV6, podV6))
					} else {
						eventually(t, "the beginning of the first sync", func() bool { return strings.Contains(d.log(), "Using iptables") })
					}
					d.end(syscall.SIGKILL)
				}
			})
			d := s.start(nil, "--proxy-mode", "iptables")
			eventually(t, "the first sync", func() bool { return strings.Contains(d.log(), "First sync done") })
			eventually(t, "the Service", s.answers(clusterIP, podA))
			eventually(t, "the IPv6 Service", s.answers(clusterV6, podV6))
			d.end(syscall.SIGTERM)
			before := s.saved(variant)
			d = s.start(nil, "--proxy-mode", "iptables")
			eventually(t, "the first sync", func() bool { return strings.Contains(d.log(), "First sync done") })
			if diff := cmp.Diff(before, s.saved(variant)); diff != "" {
				t.Errorf("a fresh daemon finds something to mend (-before +after):\n%s", diff)
			}
		})
	}
}

// TestHeldLock holds the xtables lock while endpoints change. The change is applied when the lock
// is released, and a stop waits for the lock no longer than a restore does.
func TestHeldLock(t *testing.T) {
	s := newSite(t)
	s.run("iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	hold := func(how int) {
		t.Helper()
		if err := syscall.Flock(int(lock.Fd()), how); err != nil {
			t.Fatal(err)
		}
	}
	change := s.instead("iptables-legacy-restore", `touch `+path+`.asked; exec $REAL "$@"`)
	s.write("web.yaml", service("web", clusterIP, podA))
	d := s.start(func(cmd *exec.Cmd) {
		change(cmd)
		cmd.Env = append(cmd.Env, "XTABLES_LOCKFILE="+path)
	}, "--proxy-mode", "iptables")
	eventually(t, "the Service", s.answers(clusterIP, podA))
	asked := func() bool { return os.Remove(path+".asked") == nil }
	eventually(t, "earlier restores", asked)
	hold(syscall.LOCK_EX)
	s.write("web.yaml", service("web", clusterIP, podB))
	eventually(t, "a restore", asked)
	if !s.answers(clusterIP, podA)() {
		t.Error("the Service does not answer while the lock is held")
	}
	hold(syscall.LOCK_UN)
	eventually(t, "the change", s.answers(clusterIP, podB))
	hold(syscall.LOCK_EX)
	s.write("web.yaml", service("web", clusterIP, podA))
	eventually(t, "a restore", asked)
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// loop runs a script on the node again and again until the test ends.
func (s *site) loop(script string) {
	s.t.Helper()
	cmd := exec.Command("sh", "-c", "while :; do "+script+"; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.lab.Node().Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		_ = cmd.Wait()
	})
}

// saved returns the rules of both families, sorted, without counters.
func (s *site) saved(variant string) []string {
	s.t.Helper()
	var out []byte
	if err := s.lab.Node().Do(func() (err error) {
		out, err = exec.Command("sh", "-c", "iptables-"+variant+"-save; ip6tables-"+variant+"-save").Output()
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") {
			line, _, _ = strings.Cut(line, " [")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}
