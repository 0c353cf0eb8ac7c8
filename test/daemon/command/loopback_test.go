package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sluice/test/daemon/testbed"
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

// Ways to run the daemon. Where no mode is set loopback takes NodePorts in mode
// nftables too; where that is named it takes none.
var (
	iptablesMode  = []string{"--proxy-mode", "iptables"}
	openNFTables  = []string{"--proxy-mode", ""}
	namedNFTables = []string{"--proxy-mode", "nftables"}
	excluded      = []string{"--nodeport-addresses", "10.0.0.0/8"}
	cleanup       = []string{"--cleanup"}
	initOnly      = []string{"--init-only"}
)

// modeOf returns the mode that a run serves in; empty if it does not serve.
func modeOf(args []string) string {
	switch {
	case args[0] != "--proxy-mode":
		return ""
	case args[1] == "":
		return "nftables"
	default:
		return args[1]
	}
}

func with(args []string, more ...string) []string { return slices.Concat(args, more) }

// TestLoopbackIsClosedAgain leaves the modes in all ways. What opened loopback is
// put back unless it was the administrator's, stays where the next mode needs it,
// and is never set while no rule guards loopback.
func TestLoopbackIsClosedAgain(t *testing.T) {
	tests := []struct {
		name   string
		before string
		runs   [][]string
		want   []string // after each
	}{
		{"cleanup", "", [][]string{iptablesMode, cleanup}, []string{"1", "0"}},
		{"nftables mode", "", [][]string{iptablesMode, namedNFTables}, []string{"1", "0"}},
		{"after a restart", "", [][]string{iptablesMode, iptablesMode, cleanup}, []string{"1", "1", "0"}},
		{"loopback is excluded later", "", [][]string{iptablesMode, with(iptablesMode, excluded...)}, []string{"1", "0"}},
		{"loopback is excluded", "", [][]string{with(iptablesMode, excluded...)}, []string{"0"}},
		{"loopback is switched off", "", [][]string{with(iptablesMode, "--iptables-localhost-nodeports=false")}, []string{"0"}},
		{"the administrator's", setLocalnet, [][]string{iptablesMode, iptablesMode, cleanup}, []string{"1", "1", "1"}},
		{"kube-proxy's", kubeProxyWasHere, [][]string{iptablesMode, iptablesMode, cleanup}, []string{"1", "1", "0"}},
		{"kube-proxy's, straight to nftables", kubeProxyWasHere, [][]string{namedNFTables}, []string{"0"}},

		{"nftables, cleanup", "", [][]string{openNFTables, cleanup}, []string{"1", "0"}},
		{"nftables, excluded later", "", [][]string{openNFTables, with(openNFTables, excluded...)}, []string{"1", "0"}},
		{"nftables, the administrator's", setLocalnet, [][]string{openNFTables, openNFTables, cleanup}, []string{"1", "1", "1"}},
		{"kube-proxy's, to nftables that needs it", kubeProxyWasHere, [][]string{openNFTables, openNFTables, cleanup}, []string{"1", "1", "0"}},
		{"one mode after the other", "", [][]string{iptablesMode, openNFTables, iptablesMode, cleanup}, []string{"1", "1", "1", "0"}},
		{"one mode after the other, the administrator's", setLocalnet, [][]string{iptablesMode, openNFTables, iptablesMode, cleanup}, []string{"1", "1", "1", "1"}},
		{"nftables, then iptables without", "", [][]string{openNFTables, with(iptablesMode, excluded...)}, []string{"1", "0"}},
		{"prepared for iptables", "", [][]string{with(initOnly, iptablesMode...), iptablesMode, cleanup}, []string{"1", "1", "0"}},
		{"prepared for nftables", "", [][]string{with(initOnly, openNFTables...), openNFTables, cleanup}, []string{"1", "1", "0"}},
		{"prepared, and no daemon", "", [][]string{with(initOnly, openNFTables...), cleanup}, []string{"1", "0"}},
		{"prepared to be closed", "", [][]string{openNFTables, with(initOnly, namedNFTables...)}, []string{"1", "0"}},
		{"prepared where nothing is open", "", [][]string{with(initOnly, with(iptablesMode, excluded...)...)}, []string{"0"}},
	}
	for _, variant := range []string{"nft", "legacy"} {
		for _, tt := range tests {
			t.Run(variant+"/"+tt.name, func(t *testing.T) {
				bed := testbed.New(t)
				bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
				bed.Run("sh", "-ec", "iptables-"+variant+" -t mangle -N KUBE-IPTABLES-HINT\n"+strings.ReplaceAll(tt.before, "$VARIANT", variant))
				seen, closed := filepath.Join(t.TempDir(), "seen"), filepath.Join(t.TempDir(), "closed")
				change := bed.WrapProgram("iptables-"+variant+"-restore", `$REAL "$@"; code=$?
if [ $(`+readLocalnet+`) != 1 ]; then touch `+closed+`
elif ! { iptables-`+variant+`-save; nft list table ip sluice 2>/dev/null; } | grep -q 'block incoming localnet\|loopback is not for others'; then
	touch `+seen+`
fi
exit $code`)
				left := "" // the mode whose rules are there
				if tt.before == kubeProxyWasHere {
					left = "iptables"
				}
				for i, args := range tt.runs {
					_ = os.Remove(closed)
					mode := modeOf(args)
					serveOnce(bed, change, args, left != "" && mode != left)
					if mode != "" {
						left = mode
					}
					if got := localnet(bed); got != tt.want[i] {
						t.Errorf("after run %d, %v: route_localnet is %s, want %s", i, args, got, tt.want[i])
					}
					if _, err := os.Stat(closed); err == nil && i > 0 && tt.want[i-1] == "1" && tt.want[i] == "1" {
						t.Errorf("in run %d, %v: there was a moment when loopback was closed", i, args)
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

// TestReadOnlySettings runs where the daemon may not write the host's settings, as
// in a container: what was prepared is used, and the guard stays for as long as
// loopback is open.
func TestReadOnlySettings(t *testing.T) {
	for name, mode := range map[string][]string{"nftables": openNFTables, "iptables": iptablesMode} {
		t.Run(name, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			serveOnce(bed, nil, with(initOnly, mode...), false)
			serveOnce(bed, readOnly, mode, false)
			serveOnce(bed, readOnly, with(mode, excluded...), false)
			guarded(bed, "a daemon that excludes loopback")
			d := bed.Start(readOnly, cleanup...)
			if code := d.Wait(); code != 1 || !strings.Contains(d.Log(), "route_localnet stays 1, set it to 0 on the host") {
				t.Errorf("exit code %d of a cleanup that cannot close loopback", code)
			}
			guarded(bed, "a cleanup")
			serveOnce(bed, nil, cleanup, false)
			if got := localnet(bed); got != "0" || bed.Tables() != "" && strings.Contains(bed.Tables(), "sluice") {
				t.Errorf("route_localnet is %s, tables %q", got, bed.Tables())
			}
		})
	}
}

// guarded wants loopback open and guarded.
func guarded(bed *testbed.Testbed, after string) {
	bed.T.Helper()
	bed.Run("sh", "-ec", "{ iptables-nft-save; nft list ruleset; } | grep -q 'route_localnet is 1 because of this proxy'")
	if got := localnet(bed); got != "1" {
		bed.T.Errorf("after %s: route_localnet is %s", after, got)
	}
}

// readOnly lets the daemon see the settings of the host and write none.
func readOnly(cmd *exec.Cmd) {
	script := "mount -o bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$@\""
	cmd.Args = append([]string{"unshare", "--mount", "sh", "-ec", script, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Err = exec.LookPath("unshare")
}

// serveOnce runs the daemon until it has done what it does at its start, and has
// removed what others left if there was something.
func serveOnce(bed *testbed.Testbed, change func(*exec.Cmd), args []string, others bool) {
	bed.T.Helper()
	d := bed.Start(func(cmd *exec.Cmd) {
		if slices.Contains(args, "--nodeport-addresses") { // these only
			i := slices.Index(cmd.Args, "--nodeport-addresses")
			cmd.Args = slices.Delete(cmd.Args, i, i+2)
		}
		if args[0] == "--init-only" {
			i := slices.Index(cmd.Args, "--manifests")
			cmd.Args = slices.Delete(cmd.Args, i, i+2)
		}
		if change != nil {
			change(cmd)
		}
	}, args...)
	if args[0] == "--cleanup" || args[0] == "--init-only" {
		if code := d.Wait(); code != 0 {
			bed.T.Errorf("exit code %d", code)
		}
		return
	}
	d.AwaitFirstSync()
	if others {
		d.AwaitLog("Removed objects of an earlier mode or service proxy")
	}
	d.End(syscall.SIGKILL)
}

func localnet(bed *testbed.Testbed) string {
	bed.T.Helper()
	return strings.TrimSpace(bed.Run("sh", "-c", readLocalnet))
}
