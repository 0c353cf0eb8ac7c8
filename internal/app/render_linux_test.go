package app

import (
	"bytes"
	"errors"
	goflag "flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice/internal/cli"
	"sluice/internal/config"
	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

var update = goflag.Bool("update", false, "write the golden files anew")

const renderFolder = "testdata/render"

// folderFlags are for the folder of the golden files.
var folderFlags = []string{"--manifests", renderFolder, "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16,fd00:244::/56"}

func playRender(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return play(t, newCommand("sluice", NewOptions(), actions{}), append([]string{"render"}, args...)...)
}

// rendered runs sluice render on that folder, and returns its output and exit code.
func rendered(t *testing.T, args ...string) (string, int) {
	t.Helper()
	out, err := playRender(t, append(slices.Clone(folderFlags), args...)...)
	exit, ok := errors.AsType[*cli.ExitError](err)
	switch {
	case ok && exit.Err != nil:
		t.Fatalf("render %q: %v", args, err)
	case ok:
		return out, exit.Code
	case err != nil:
		t.Fatalf("render %q: %v", args, err)
	}
	return out, 0
}

// TestRender compares what each mode would write with golden files. Modes whose
// rules are like those of nftables have a golden file for one family only.
func TestRender(t *testing.T) {
	tests := []struct {
		name string
		args []string
	}{
		{"nftables", []string{"--proxy-mode=nftables"}},
		{"iptables", []string{"--proxy-mode=iptables"}},
		{"ipvs", []string{"--proxy-mode=ipvs", "--family=IPv4"}},
		{"userspace", []string{"--proxy-mode=userspace", "--family=IPv4"}},
		{"ebpf", []string{"--proxy-mode=ebpf", "--nodeport-addresses=primary", "--iptables-localhost-nodeports=false"}},
		{"kernelspace", []string{"--proxy-mode=kernelspace"}},
		{"nftables-gate", []string{"--proxy-mode=nftables", "--service=default/gate"}},
		{"iptables-gate", []string{"--proxy-mode=iptables", "--service=default/gate"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, code := rendered(t, tt.args...)
			if again, _ := rendered(t, tt.args...); code != 0 || again != got {
				t.Errorf("exit code %d; the second time (-first +second):\n%s", code, cmp.Diff(got, again))
			}
			if tt.name == "ebpf" {
				rules, _ := rendered(t, "--proxy-mode=nftables")
				maps, ok := strings.CutSuffix(got, rules)
				if got = maps; !ok {
					t.Error("the rules are not those of mode nftables")
				}
			}
			golden(t, filepath.Join(renderFolder, tt.name+".golden"), got)
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got, go test ./internal/app -run TestRender -update writes it anew):\n%s", file, diff)
	}
}

// TestRenderMistakes checks that mistakes are reported in one line, with exit code
// 2.
func TestRenderMistakes(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"no folder", nil, "no source of Services: give --manifests DIR"},
		{"missing folder", []string{"--manifests=/none"}, `--manifests "/none": open /none: no such file or directory`},
		{
			"unknown mode", append(slices.Clone(folderFlags), "--proxy-mode=magic"),
			`--proxy-mode "magic": no such mode; modes: nftables, iptables, ipvs, userspace, ebpf`,
		},
		{
			"unknown Service", append(slices.Clone(folderFlags), "--service=default/none"),
			`--service "default/none": the folder has no such Service with an address that this proxy serves; give NAMESPACE/NAME`,
		},
		{"unknown family", append(slices.Clone(folderFlags), "--family=IPv5"), `--family "IPv5": not one of [IPv4 IPv6]`},
		{"an argument", append(slices.Clone(folderFlags), "web"), `unexpected argument "web": render takes flags only`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := playRender(t, tt.args...)
			exit, _ := errors.AsType[*cli.ExitError](err)
			if exit == nil || exit.Code != cli.ExitNoAnswer || err.Error() != tt.want {
				t.Errorf("error %v, want exit code %d and %s", err, cli.ExitNoAnswer, tt.want)
			}
		})
	}
}

// namespace creates an empty network namespace.
func namespace(t *testing.T) *traffic.Namespace {
	t.Helper()
	lab.Require(t)
	n, err := traffic.New(t.Name(), &traffic.Ports{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// program runs a program in a namespace and returns its output.
func program(t *testing.T, n *traffic.Namespace, input string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
	if err := n.Do(cmd.Run); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out.String())
	}
	return out.String()
}

// synced lets a mode write the folder into the kernel of a namespace.
func synced(t *testing.T, n *traffic.Namespace, mode config.ProxyMode) {
	t.Helper()
	o := NewOptions()
	if err := o.flagSubset(offlineFlags...).Parse(append(slices.Clone(folderFlags), "--proxy-mode="+string(mode))); err != nil {
		t.Fatal(err)
	}
	p, err := o.offlinePlan()
	if err != nil {
		t.Fatal(err)
	}
	state, err := p.offline(t.Context(), proxy.Families[:])
	if err != nil {
		t.Fatal(err)
	}
	m, err := dataplane.Of(mode)
	if err != nil {
		t.Fatal(err)
	}
	err = n.Do(func() error {
		d, err := m.Open(t.Context(), o.settingsOf(p.config))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = d.Close() })
		return proxytest.Sync(t.Context(), d, state.resolver.State())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// commands returns the commands of the nft program, and comments, in rendered text.
func commands(text string) string {
	return strings.Join(regexp.MustCompile(`(?m)^(add|#) .*\n`).FindAllString(text, -1), "")
}

// TestRenderedRulesLoad loads rendered rules with the programs that they are for.
func TestRenderedRulesLoad(t *testing.T) {
	n := namespace(t)
	for _, mode := range []string{"nftables", "ipvs", "userspace"} {
		text, _ := rendered(t, "--proxy-mode="+mode)
		if mode == "nftables" && commands(text) != text {
			t.Error("not everything is for the nft program")
		}
		program(t, n, commands(text), "nft", "-c", "-f", "-")
	}
	text, _ := rendered(t, "--proxy-mode=ebpf", "--ebpf-untracked-cidrs=10.0.0.0/8,fd00:10::/64")
	for _, part := range []string{" notrack comment ", " snat to :61440-65535 fully-random comment "} {
		if n := strings.Count(text, part); n != 4 { // of two families and protocols
			t.Errorf("%d rules with %q; want 4", n, part)
		}
	}
	program(t, n, commands(text), "nft", "-c", "-f", "-")
	for family, name := range map[string]string{"IPv4": "iptables", "IPv6": "ip6tables"} {
		text, _ := rendered(t, "--proxy-mode=iptables", "--family="+family)
		for _, variant := range []string{"nft", "legacy"} {
			program(t, n, text, name+"-"+variant+"-restore", "--noflush", "--test")
		}
	}
}

// TestRenderedRulesAreThoseWritten compares the rules that a mode writes with the
// rendered ones, loaded by a program.
func TestRenderedRulesAreThoseWritten(t *testing.T) {
	t.Run("nftables", func(t *testing.T) {
		read, written := namespace(t), namespace(t)
		text, _ := rendered(t, "--proxy-mode=nftables")
		program(t, read, text, "nft", "-f", "-")
		synced(t, written, config.NFTables)
		unreadable := regexp.MustCompile(`(?m)^.*@affinity \{ ip6 .*\n`) // by nft before 1.0.9
		list := program(t, written, "", "nft", "-s", "list", "ruleset")
		if n := strings.Count(text, " nft before 1.0.9 "); len(unreadable.FindAllString(list, -1)) != n {
			t.Errorf("%d rules are left out of\n%s", n, list)
		}
		want, got := unreadable.ReplaceAllString(list, ""), program(t, read, "", "nft", "-s", "list", "ruleset")
		if diff := cmp.Diff(tidyList(want), tidyList(got)); diff != "" {
			t.Errorf("rules (-written +read):\n%s", diff)
		}
	})
	for family, name := range map[string]string{"IPv4": "iptables", "IPv6": "ip6tables"} {
		t.Run(name, func(t *testing.T) {
			read, written := namespace(t), namespace(t)
			text, _ := rendered(t, "--proxy-mode=iptables", "--family="+family)
			program(t, read, text, name+"-restore", "--noflush")
			synced(t, written, config.IPTables)
			want, got := program(t, written, "", name+"-save"), program(t, read, "", name+"-save")
			dates := regexp.MustCompile(`(?m)^#.*\n`)
			if diff := cmp.Diff(dates.ReplaceAllString(want, ""), dates.ReplaceAllString(got, "")); diff != "" {
				t.Errorf("rules (-written +read):\n%s", diff)
			}
		})
	}
}

// tidyList returns the lines of a list of rules with one element each, sorted. The
// numbers of classes depend on the order in which rows were written: each becomes
// the name of its chain.
func tidyList(list string) []string {
	var tables []string
	for _, table := range strings.Split(list, "\n}\n") {
		for _, class := range regexp.MustCompile(`(e000:[0-9a-f]+) : goto (\S+[^,\s])`).FindAllStringSubmatch(table, -1) {
			table = regexp.MustCompile(`: e([08])`+class[1][2:]+`\b`).ReplaceAllString(table, ": class $1 "+class[2])
			table = strings.Replace(table, class[0], class[2], 1)
		}
		lines := regexp.MustCompile(`,?\s*\n\s*|, |elements = \{ | \}\n`).Split(table, -1)
		slices.Sort(lines)
		tables = append(tables, lines...)
	}
	return tables
}

// TestRenderDiff checks that changes by others are shown, and that nothing is
// changed.
func TestRenderDiff(t *testing.T) {
	tests := []struct {
		mode   config.ProxyMode
		change []string
		want   string // a line, that begins with a sign
	}{
		{
			"nftables",
			[]string{"nft", "delete", "element", "ip", "sluice", "endpoints", "{ 10.96.0.20 . tcp . 443 . f000:1 }"},
			"+ add element ip sluice endpoints { 10.96.0.20 . tcp . 443 . f000:1 : 10.244.1.12 . 8443 }",
		},
		{
			"nftables",
			[]string{"nft", "insert", "rule", "ip6", "sluice", "services", "ip6", "daddr", "fd00:96::10", "drop"},
			"- add rule ip6 sluice services ip6 daddr fd00:96::10 drop",
		},
		{
			"nftables",
			[]string{"nft", "add", "rule", "ip", "sluice", "refuse", "counter"},
			`- a rule of another program in chain refuse: comment "", "counter\n"`,
		},
		{
			"iptables",
			[]string{"iptables", "-t", "nat", "-D", "KUBE-NODEPORTS", "2"},
			`+ -A KUBE-NODEPORTS -p tcp -m comment --comment "default/gate:https" -m tcp --dport 30443 -j KUBE-EXT-2RZNKE7IO7VSCATA`,
		},
		{"iptables", []string{"ip6tables", "-I", "KUBE-FORWARD", "-j", "DROP"}, "- -A KUBE-FORWARD -j DROP"},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.change, " "), func(t *testing.T) {
			n := namespace(t)
			diff := func() (out string, code int) {
				_ = n.Do(func() error {
					out, code = rendered(t, "--diff", "--proxy-mode="+string(tt.mode))
					return nil
				})
				return out, code
			}
			if _, code := diff(); code != cli.ExitFinding {
				t.Errorf("a kernel without rules: exit code %d", code)
			}
			synced(t, n, tt.mode)
			if out, code := diff(); code != 0 || out != "" {
				t.Errorf("a kernel that is right: exit code %d\n%s", code, out)
			}
			program(t, n, "", tt.change...)
			before := program(t, n, "", "nft", "list", "ruleset")
			out, code := diff()
			if lines := strings.Split(strings.TrimSpace(out), "\n"); code != cli.ExitFinding || len(lines) != 2 || lines[1] != tt.want {
				t.Errorf("exit code %d\n%s\nwant %s", code, out, tt.want)
			}
			if after := program(t, n, "", "nft", "list", "ruleset"); after != before {
				t.Errorf("something was changed (-before +after):\n%s", cmp.Diff(before, after))
			}
		})
	}
}

// TestRenderDiffChangesNoSetting compares rules whose writing would restore a
// setting of the host.
func TestRenderDiffChangesNoSetting(t *testing.T) {
	for _, mode := range []config.ProxyMode{config.IPTables, "userspace", "ebpf"} {
		n := namespace(t)
		synced(t, n, config.IPTables)
		var code int
		_ = n.Do(func() error {
			_, code = rendered(t, "--diff", "--proxy-mode="+string(mode), "--iptables-localhost-nodeports=false", "--bpf-root="+t.TempDir())
			return nil
		})
		if is := program(t, n, "", "cat", "/proc/sys/net/ipv4/conf/all/route_localnet"); code != cli.ExitFinding || is != "1\n" {
			t.Errorf("mode %s: exit code %d, route_localnet %q, which was 1", mode, code, is)
		}
	}
}

// TestRenderDiffWithoutRights checks that missing rights are reported in one line.
func TestRenderDiffWithoutRights(t *testing.T) {
	for mode, want := range map[string]string{
		"nftables":  "no permission to use nf_tables: run as root",
		"iptables":  "no permission to read iptables: run as root",
		"userspace": "no permission to use nf_tables: run as root",
		"ebpf":      "no permission to use nf_tables: run as root",
	} {
		n, failed := namespace(t), make(chan error)
		go func() {
			runtime.LockOSThread() // and so the thread ends with the goroutine
			none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			err := errors.Join(netns.Set(n.Handle), unix.Capset(&none, &make([]unix.CapUserData, 2)[0]))
			if err == nil {
				_, err = playRender(t, append(slices.Clone(folderFlags), "--diff", "--proxy-mode="+mode, "--bpf-root="+t.TempDir())...)
			}
			failed <- err
		}()
		err := <-failed
		exit, _ := errors.AsType[*cli.ExitError](err)
		if exit == nil || exit.Code != cli.ExitNoAnswer || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("mode %s: error %v, want exit code %d and %s", mode, err, cli.ExitNoAnswer, want)
		}
	}
}
