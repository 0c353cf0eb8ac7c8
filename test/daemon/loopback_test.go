package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const (
	readLocalnet = "cat /proc/sys/net/ipv4/conf/all/route_localnet"
	setLocalnet  = "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet"

	// kubeProxyWasHere is what kube-proxy leaves that opened loopback.
	kubeProxyWasHere = setLocalnet + `
iptables-$VARIANT -t nat -N KUBE-NODEPORTS
iptables-$VARIANT -t nat -N KUBE-SERVICES
iptables-$VARIANT -t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
iptables-$VARIANT -t nat -A PREROUTING -j KUBE-SERVICES
iptables-$VARIANT -N KUBE-FIREWALL
iptables-$VARIANT -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" \
	-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
iptables-$VARIANT -A INPUT -j KUBE-FIREWALL
`
)

// TestLoopbackIsClosedAgain leaves the iptables mode in all ways. What opened
// loopback is put back unless it was the administrator's, and is never set
// while no rule guards loopback.
func TestLoopbackIsClosedAgain(t *testing.T) {
	iptables := []string{"--proxy-mode", "iptables"}
	tests := []struct {
		name   string
		before string
		runs   [][]string
		open   string // after the first run
		want   string // after the last
	}{
		{"cleanup", "", [][]string{iptables, {"--cleanup"}}, "1", "0"},
		{"nftables mode", "", [][]string{iptables, {"--proxy-mode", "nftables"}}, "1", "0"},
		{"after a restart", "", [][]string{iptables, iptables, {"--cleanup"}}, "1", "0"},
		{"loopback is excluded later", "", [][]string{iptables, {"--proxy-mode", "iptables", "--nodeport-addresses", "10.0.0.0/8"}}, "1", "0"},
		{"loopback is excluded", "", [][]string{{"--proxy-mode", "iptables", "--nodeport-addresses", "10.0.0.0/8"}}, "0", "0"},
		{"loopback is switched off", "", [][]string{{"--proxy-mode", "iptables", "--iptables-localhost-nodeports=false"}}, "0", "0"},
		{"the administrator's", setLocalnet, [][]string{iptables, iptables, {"--cleanup"}}, "1", "1"},
		{"kube-proxy's", kubeProxyWasHere, [][]string{iptables, iptables, {"--cleanup"}}, "1", "0"},
		{"kube-proxy's, straight to nftables", kubeProxyWasHere, [][]string{{"--proxy-mode", "nftables"}}, "0", "0"},
	}
	for _, variant := range []string{"nft", "legacy"} {
		for _, tt := range tests {
			t.Run(variant+"/"+tt.name, func(t *testing.T) {
				s := newSite(t)
				s.write("web.yaml", service("web", clusterIP, podA))
				s.run("sh", "-ec", "iptables-"+variant+" -t mangle -N KUBE-IPTABLES-HINT\n"+strings.ReplaceAll(tt.before, "$VARIANT", variant))
				seen := filepath.Join(t.TempDir(), "seen")
				change := s.instead("iptables-"+variant+"-restore", `$REAL "$@"; code=$?
if [ $(`+readLocalnet+`) = 1 ] && ! `+"iptables-"+variant+`-save | grep -q 'block incoming localnet'; then echo open >> `+seen+`; fi
exit $code`)
				for i, args := range tt.runs {
					s.serveOnce(change, args)
					want := tt.open
					if i > 0 && i == len(tt.runs)-1 {
						want = tt.want
					}
					if got := s.localnet(); got != want {
						t.Errorf("after run %d, %v: route_localnet is %s, want %s", i, args, got, want)
					}
				}
				if tt.before == setLocalnet {
					return // the administrator's own has no guard before and after
				}
				if _, err := os.Stat(seen); err == nil {
					t.Error("there was a moment when loopback was open and not guarded")
				}
			})
		}
	}
}

// serveOnce runs the daemon until it has done what it does at its start.
func (s *site) serveOnce(change func(*exec.Cmd), args []string) {
	s.t.Helper()
	d := s.start(func(cmd *exec.Cmd) {
		change(cmd)
		if slices.Contains(args, "--nodeport-addresses") { // these only
			i := slices.Index(cmd.Args, "--nodeport-addresses")
			cmd.Args = slices.Delete(cmd.Args, i, i+2)
		}
	}, args...)
	if args[0] == "--cleanup" {
		if code := d.wait(); code != 0 {
			s.t.Errorf("exit code %d", code)
		}
		return
	}
	eventually(s.t, "the first sync", func() bool { return strings.Contains(d.log(), "First sync done") })
	if strings.Contains(strings.Join(args, " "), "nftables") {
		eventually(s.t, "the takeover", func() bool { return strings.Contains(d.log(), "Removed what another service proxy left") })
	}
	d.end(syscall.SIGKILL)
}

func (s *site) localnet() string {
	s.t.Helper()
	var out []byte
	if err := s.lab.Node().Do(func() (err error) {
		out, err = exec.Command("sh", "-c", readLocalnet).Output()
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
