package foreign

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
)

// foreignChange is something that another process does on the node.
type foreignChange struct {
	fault string // as an operator would say it

	// By mode, what the shell is told, and what the daemon's log names of it; no name:
	// nothing of ours is changed. The mode rules stands for all that have their rules
	// in a table TABLE of nf_tables.
	script, names map[string]string

	hand func(*testbed.Testbed) error // what this process does, instead of the shell
	only string                       // the mode that it does it in; empty: all

	save    string // told to the shell before, when the Service had another endpoint
	sockets bool   // played in mode ebpf, too, whose rules are those of mode nftables
	service bool   // it is one Service's, which the log names
	since   string // the version of Linux that has it first; empty: all have
	cuts    string // why packets to Services may be lost meanwhile, whatever the daemon does; empty: none may be
}

// everywhere is the same in all modes.
func everywhere(s string) map[string]string { return map[string]string{"rules": s, "iptables": s} }

// either is what is for rules of nf_tables, and what for iptables.
func either(rules, iptables string) map[string]string {
	return map[string]string{"rules": rules, "iptables": iptables}
}

// in is of one mode.
func in(mode, s string) map[string]string { return map[string]string{mode: s} }

const (
	// habits are functions of the shell for what programs do that write by iptables.
	habits = `
both() { iptables-nft "$@"; ip6tables-nft "$@"; }
flush() { for t in filter nat mangle raw; do both -t $t -F; both -t $t -X || true; done; }
policy() { for c in INPUT FORWARD OUTPUT; do both -P $c $1; done; }
`
	// lookup is the rule by which an endpoint is chosen.
	lookup = "$(nft -a list chain ip TABLE services | grep 'map @services' | sed 's/.*handle //')"

	// Why connections fail.
	noRules     = "until the repair no rule chooses an endpoint, so that new connections are refused or go nowhere"
	noEntry     = "until the repair the Service's address is nobody's"
	returned    = "until the repair its rule has packets leave before an endpoint is chosen"
	noSockets   = "until the repair nothing leads packets to the sockets of the process"
	forgotten   = "the kernel forgets how the packets of open connections were translated"
	noServer    = "until the repair IPVS has nobody to send the Service's packets to"
	noAddress   = "until the repair the node does not have the Service's address"
	catchesAll  = "until the repair each address counts as a ClusterIP"
	untracked   = "until the repair what IPVS sends on is not tracked"
	noScheduler = "the kernel takes the old scheduler away before it sets the new one"
	policies    = "it sets policies to drop while it reloads, and takes all rules away"

	inServices = "in chain services of table ip TABLE by nft, process [0-9]+"
	inKube     = "KUBE-SERVICES"
)

var foreignChanges = []foreignChange{
	{
		fault: "nft flush ruleset", sockets: true, script: everywhere("nft flush ruleset"), cuts: noRules,
		names: map[string]string{"rules": "ip6? TABLE", "iptables": "KUBE-", testbed.Legacy: ""},
	},
	{fault: "conntrack -F", sockets: true, hand: func(bed *testbed.Testbed) error { return bed.Lab.Node().FlushConntrack() }, cuts: forgotten},
	{fault: "our table flushed", script: in("rules", "nft flush table ip TABLE"), names: in("rules", "rule deleted in chain .* of table ip TABLE"), cuts: noRules},
	{
		fault: "our tables deleted", sockets: true, script: in("rules", "nft delete table ip6 TABLE; nft delete table ip TABLE"),
		names: in("rules", "deleted .*table ip6 TABLE"), cuts: noRules,
	},
	{
		fault: "a chain flushed", script: either("nft flush chain ip TABLE services", "iptables-nft -t nat -F KUBE-SERVICES"),
		names: either("rule deleted "+inServices, inKube), cuts: noRules,
	},
	{
		fault: "a rule deleted", script: either("nft delete rule ip TABLE services handle "+lookup, "iptables-nft -t nat -D KUBE-SERVICES 1"),
		names: either("rule deleted "+inServices, inKube), cuts: noRules,
	},
	{
		fault: "a rule replaced", names: either("rule (added|deleted) "+inServices, "KUBE-SERVICES|the chains of Services"), cuts: noRules,
		script: either("nft replace rule ip TABLE services handle "+lookup+" counter", "iptables-nft -t nat -R KUBE-SERVICES 1 -d 192.0.2.1 -j ACCEPT"),
	},
	{
		fault: "a rule added to a chain of ours", script: either("nft insert rule ip TABLE services return", "iptables-nft -t nat -I KUBE-SERVICES -j RETURN"),
		names: either("rule added "+inServices, inKube), cuts: returned,
	},
	{
		fault: "a map flushed", script: in("rules", "nft flush map ip TABLE services"),
		names: in("rules", "element deleted in set services of table ip TABLE"), service: true, cuts: noEntry,
	},
	{
		fault: "an element deleted", script: in("rules", "nft delete element ip TABLE services { 172.30.0.10 . tcp . 80 }"),
		names: in("rules", "element deleted in set services of table ip TABLE"), service: true, cuts: noEntry,
	},
	{
		fault: "an element added", script: in("rules", "nft add element ip TABLE cluster-ips { 172.30.0.77 }"),
		names: in("rules", "element added in set cluster-ips of table ip TABLE"),
	},
	{
		fault: "a catch-all element added", script: in("rules", "nft add element ip TABLE cluster-ips { '*' }"),
		names: in("rules", "element added in set cluster-ips of table ip TABLE"), cuts: catchesAll, since: "5.13",
	},
	{
		fault: "a rule with a chain of its own added", script: in("rules", "nft insert rule ip TABLE services ip saddr 192.0.2.1 jump '{ counter; accept; }'"),
		names: in("rules", "chain __chain[0-9]+ of table ip TABLE added"),
	},
	{fault: "our table put to sleep", script: in("rules", "nft add table ip TABLE '{ flags dormant; }'"), names: in("rules", "table ip TABLE added"), cuts: noRules},
	{
		fault: "a chain of a Service flushed", names: in("iptables", "the chains of Services"), service: true, cuts: noRules,
		script: in("iptables", "iptables-nft -t nat -F $(iptables-nft -t nat -S KUBE-SERVICES | grep -o 'KUBE-SVC-.*')"),
	},
	{
		fault: "an old ruleset restored", save: "nft list ruleset > FILE", script: in("rules", "nft flush ruleset; nft -f FILE || true"),
		names: in("rules", "ip6? TABLE"), cuts: noRules,
	},
	{
		fault: "old rules of iptables restored", save: "iptables-nft-save > FILE", script: everywhere("iptables-nft-restore < FILE"),
		names: in("iptables", "rules differ from those that were written: nat the chains of Services"), service: true, cuts: noRules,
	},
	{fault: "iptables-save | iptables-restore", script: everywhere("iptables-nft-save | iptables-nft-restore; ip6tables-nft-save | ip6tables-nft-restore")},
	{fault: "iptables flushed", script: everywhere(habits + "flush"), names: in("iptables", "KUBE-"), cuts: noRules},
	{fault: "firewalld reloads (iptables backend)", sockets: true, script: everywhere(habits + `policy DROP; flush
both -N INPUT_direct; both -A INPUT -j INPUT_direct; policy ACCEPT`), names: in("iptables", "KUBE-"), cuts: policies},
	{fault: "firewalld reloads (nftables backend)", script: everywhere(`
nft 'add table inet firewalld_policy_drop; add chain inet firewalld_policy_drop filter_input { type filter hook input priority 9; policy drop; }
add rule inet firewalld_policy_drop filter_input ct state established,related accept'
nft delete table inet firewalld
nft 'add table inet firewalld; add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; policy accept; }'
nft delete table inet firewalld_policy_drop`), cuts: policies},
	{fault: "ufw reloads", script: everywhere(`printf '*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:ufw-before-input -
-A INPUT -j ufw-before-input\nCOMMIT\n' | iptables-nft-restore`), names: in("iptables", "KUBE-"), cuts: noRules},
	{fault: "Docker restarts", sockets: true, script: everywhere(`
iptables-nft -N DOCKER-USER; iptables-nft -N DOCKER; iptables-nft -t nat -N DOCKER
iptables-nft -I DOCKER-USER -i cni0 -j ACCEPT; iptables-nft -I DOCKER-USER -o cni0 -j ACCEPT
iptables-nft -I FORWARD -j DOCKER; iptables-nft -I FORWARD -j DOCKER-USER; iptables-nft -P FORWARD DROP
iptables-nft -t nat -I PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
iptables-nft -t nat -I POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE`)},
	{fault: "a CNI inserts its chains before ours", script: everywhere(`
for t in mangle nat filter; do iptables-nft -t $t -N cali-top; done
for c in PREROUTING OUTPUT POSTROUTING; do iptables-nft -t nat -I $c -j cali-top; done
for c in INPUT FORWARD OUTPUT; do iptables-nft -I $c -j cali-top; done
iptables-nft -t nat -I POSTROUTING -s 10.0.0.0/8 ! -d 10.0.0.0/8 -j MASQUERADE --random-fully`)},
	{
		fault: "a rule for marked packets deleted", script: in("userspace", "ip rule del priority 10270; ip -6 rule del priority 10270"),
		names: in("userspace", "routing is missing: ip rule add fwmark"), cuts: noSockets,
	},
	{
		fault: "the routes of our routing table flushed", script: in("userspace", "ip route flush table 10270"),
		names: in("userspace", "routing is missing: ip rule add fwmark"), cuts: noSockets,
	},
	{fault: "a program unpinned", script: in("ebpf", "rm PINS/connect4"), names: in("ebpf", "program connect4 is not attached, or replaced by another program")},
	{
		fault: "programs detached", only: "ebpf", names: in("ebpf", "program (connect4|recvmsg4|sendmsg4) .*and 2 more"),
		hand: func(bed *testbed.Testbed) error {
			return eachLink(bed, link.Link.Detach, "connect4", "sendmsg4", "recvmsg4")
		},
	},
	{
		fault: "a program replaced", only: "ebpf", names: in("ebpf", "program connect4 is not attached, or replaced by another program"),
		hand: func(bed *testbed.Testbed) error { return eachLink(bed, replaceProgram, "connect4") },
	},
	{
		fault: "entries of Services deleted from a map", only: "ebpf", names: in("ebpf", "default/web:http/TCP/IPv4: entry of map services"),
		hand: func(bed *testbed.Testbed) error { return bed.EachEntry("services", testbed.DeleteEntry) },
	},
	{
		fault: "entries of endpoints deleted from a map", only: "ebpf", names: in("ebpf", "default/web:http/TCP/IPv4: entry of map endpoints"), service: true,
		hand: func(bed *testbed.Testbed) error { return bed.EachEntry("endpoints", testbed.DeleteEntry) },
	},
	{
		fault: "entries of endpoints changed in a map", only: "ebpf", names: in("ebpf", "default/web:http/TCP/IPv4: entry of map endpoints"), service: true,
		hand: func(bed *testbed.Testbed) error { return bed.EachEntry("endpoints", changeEntry) },
	},
	{
		fault: "the node's addresses deleted from a map", only: "ebpf", names: in("ebpf", "entry of map node_addrs"),
		hand: func(bed *testbed.Testbed) error { return bed.EachEntry("node_addrs", testbed.DeleteEntry) },
	},
	{
		fault: "the settings of programs changed in a map", only: "ebpf", names: in("ebpf", "entry of map settings"),
		hand: func(bed *testbed.Testbed) error { return bed.EachEntry("settings", changeEntry) },
	},
	{fault: "the ports of our listeners taken at other addresses", only: "userspace", hand: takePorts},
	{
		fault: "the address of our listeners deleted", script: in("userspace", "ip addr del 127.0.0.1/8 dev lo"),
		names: in("userspace", "routing is missing: ip rule add fwmark"), cuts: noSockets,
	},
	{
		fault: "IPVS cleared", script: in("ipvs", "ipvsadm -C"),
		names: in("ipvs", "default/(web|six):http/TCP/IPv.: IPVS virtual server TCP .*:80 is gone"), cuts: noServer,
	},
	{
		fault: "a virtual server deleted", script: in("ipvs", "ipvsadm -D -t 172.30.0.10:80"),
		names: in("ipvs", "default/web:http/TCP/IPv4: IPVS virtual server TCP 172.30.0.10:80 is gone"), cuts: noServer,
	},
	{ // the kernel takes the old scheduler away, waits, and sets the new one
		fault: "a virtual server's scheduler changed", script: in("ipvs", "ipvsadm -E -t 172.30.0.10:80 -s lc"),
		names: in("ipvs", "default/web:http/TCP/IPv4: IPVS virtual server TCP 172.30.0.10:80 is .* -s lc, not .* -s rr"), cuts: noScheduler,
	},
	{
		fault: "a real server added", script: in("ipvs", "ipvsadm -a -t 172.30.0.10:80 -r 10.0.0.12:8080 -m"),
		names: in("ipvs", "default/web:http/TCP/IPv4: real server of .*10.0.0.12:8080"),
	},
	{
		fault: "a real server deleted", script: in("ipvs", "ipvsadm -d -t 172.30.0.10:80 -r 10.0.0.11:8080"),
		names: in("ipvs", "default/web:http/TCP/IPv4: real server of .* is gone"), cuts: noServer,
	},
	{
		fault: "a real server's weight changed", script: in("ipvs", "ipvsadm -e -t 172.30.0.10:80 -r 10.0.0.11:8080 -m -w 7"),
		names: in("ipvs", "default/web:http/TCP/IPv4: real server of .* -w 7, not .* -w 1"),
	},
	{
		fault: "an address of IPVS removed", script: in("ipvs", "ip address del 172.30.0.10/32 dev kube-ipvs0"),
		names: in("ipvs", "default/web:http/TCP/IPv4: address of link kube-ipvs0 is gone"), cuts: noAddress,
	},
	{ // which takes its addresses of IPv6
		fault: "the link of IPVS set up and down", script: in("ipvs", "ip link set kube-ipvs0 up; ip link set kube-ipvs0 down"),
		names: in("ipvs", "default/six:http/TCP/IPv6: address of link kube-ipvs0 is gone"),
	},
	{
		fault: "a setting of IPVS changed", script: in("ipvs", "echo 0 >/proc/sys/net/ipv4/vs/conntrack"),
		names: in("ipvs", "sysctl is net.ipv4.vs.conntrack = 0, not net.ipv4.vs.conntrack = 1"), cuts: untracked,
	},
	{
		fault: "the link of IPVS deleted", script: in("ipvs", "ip link del kube-ipvs0"),
		names: in("ipvs", "default/(web|six):http/TCP/IPv.: address of link kube-ipvs0 is gone"), cuts: noAddress,
	},
}

// scriptFor returns what there is for a mode; empty: nothing.
func scriptFor(bed *testbed.Testbed, mode string, all map[string]string) string {
	text, ok := all[mode]
	switch {
	case ok:
	case mode == testbed.Legacy:
		text = strings.ReplaceAll(all["iptables"], "tables-nft", "tables-legacy")
	case mode != "iptables":
		text = all["rules"]
	}
	return strings.NewReplacer("TABLE", tableOf(mode), "PINS", bed.Pins(), "FILE", filepath.Join(filepath.Dir(bed.Socket), "saved")).Replace(text)
}

// tableOf is the name of a mode's table.
func tableOf(mode string) string {
	return map[string]string{"nftables": "sluice", "ebpf": "sluice", "ipvs": "sluice-ipvs", "userspace": "sluice-userspace"}[mode]
}

// clearRules removes all rules, and leaves the word that legacy tables are used if they are.
func clearRules(bed *testbed.Testbed, mode string) {
	bed.T.Helper()
	bed.Run("nft", "flush ruleset")
	if mode == testbed.Legacy {
		bed.Run("sh", "-ec", scriptFor(bed, mode, in("iptables", habits+"policy ACCEPT; flush; both -t mangle -N KUBE-KUBELET-CANARY")))
	}
}

// TestForeignChanges changes rules from another process while a daemon serves: our rules are
// repaired at once, the log names the change, other rules stay as they are, and nothing is written
// needlessly.
func TestForeignChanges(t *testing.T) {
	for _, mode := range append([]string{testbed.Legacy}, testbed.Modes...) {
		t.Run(mode, func(t *testing.T) {
			if mode != "ebpf" { // for which the process is in a cgroup of its own, with all that it starts
				t.Parallel()
			}
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			if mode == "ipvs" { // whose addresses of each family go by ways of their own
				bed.Write("six.yaml", testbed.Service("six", testbed.ClusterV6, testbed.PodV6))
			}
			for _, c := range foreignChanges {
				if appliesTo(bed, mode, c) {
					t.Run(c.fault, func(t *testing.T) {
						bed := bed.For(t)
						bed.Patience = 500 * time.Millisecond
						suffers(bed, mode, c)
					})
				}
			}
		})
	}
}

// appliesTo reports whether a change is of a mode.
func appliesTo(bed *testbed.Testbed, mode string, c foreignChange) bool {
	switch {
	case c.only != "":
		return c.only == mode
	case c.hand == nil && scriptFor(bed, mode, c.script) == "":
		return false
	default:
		return mode != "ebpf" || c.sockets || c.script[mode] != ""
	}
}

// suffers runs a daemon and another process that changes something.
func suffers(bed *testbed.Testbed, mode string, c foreignChange) {
	if c.since != "" {
		bed.NeedLinux(c.since, "one can do that")
	}
	clearRules(bed, mode)
	bed.Run("sh", "-c", `nft 'add table inet firewalld; add table inet others
add chain inet others theirs { type filter hook forward priority 5; }; add rule inet others theirs counter comment "theirs"'`)
	d := bed.Start(nil, "--ipvs-sync-period", "1h") // by which nothing is to be noticed
	defer d.End(syscall.SIGTERM)
	if c.save != "" {
		bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
		testbed.Eventually(bed.T, "the former endpoint", bed.Answers(testbed.ClusterIP, testbed.PodB))
		bed.Run("sh", "-ec", scriptFor(bed, mode, everywhere(c.save)))
		bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	}
	testbed.Eventually(bed.T, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	bed.AwaitSync() // by then it watches
	load := bed.Load(2, testbed.ClusterIP)
	logged, began, names := awaitFirstSyncLogged(bed, d), time.Now(), scriptFor(bed, mode, c.names)
	if c.hand != nil {
		if err := c.hand(bed); err != nil {
			bed.T.Fatal(err)
		}
	}
	bed.Run("sh", "-ec", scriptFor(bed, mode, c.script))
	ended, theirs := time.Now(), otherRules(bed)
	took := awaitRepair(bed, mode, d, logged, began, ended, names != "")
	made, failed := load()
	note := ""
	if len(failed) > 0 {
		note = c.cuts
	}
	reliability.Record(bed.T, reliability.Result{
		Fault: c.fault, Mode: mode, Tried: 1, Requests: made, Failed: len(failed), Repairs: took, Note: note,
	})
	if now := otherRules(bed); now != theirs {
		bed.T.Errorf("what is others' was\n%s\nand is\n%s", theirs, now)
	}
	if len(failed) > 0 && c.cuts == "" {
		bed.T.Errorf("%d of %d connections failed, the first: %v", len(failed), made, failed[0])
	}
	seen := foreignLine.FindAllString(d.Log()[logged:], -1)
	if (names == "") != (len(seen) == 0) || !regexp.MustCompile(names).MatchString(strings.Join(seen, "\n")) {
		bed.T.Errorf("the log says %q, want %q", seen, names)
	}
	if names != "" && c.service && !strings.Contains(d.Log()[logged:], `servicePorts=["default/web:http`) {
		bed.T.Error("the log does not name the Service")
	}
}

// TestNFTRestoresIPTables restores iptables tables with the nft program, in a form that iptables
// then refuses to list: Services work, and the log says what to do.
func TestNFTRestoresIPTables(t *testing.T) {
	bed := testbed.NewFor(t, "iptables")
	file := filepath.Join(t.TempDir(), "saved")
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	d := bed.Start(nil)
	testbed.Eventually(t, "the former endpoint", bed.Answers(testbed.ClusterIP, testbed.PodB))
	bed.Run("sh", "-ec", "nft list ruleset > "+file)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	bed.Run("sh", "-ec", "nft flush ruleset; nft -f "+file)
	d.AwaitLog("Table has rules that iptables cannot list")
	testbed.Eventually(t, "the Service after it", bed.Answers(testbed.ClusterIP, testbed.PodA))
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	testbed.Eventually(t, "a change after it", bed.Answers(testbed.ClusterIP, testbed.PodB))
}

// foreignLine is where the log tells of a foreign change.
var foreignLine = regexp.MustCompile(`(?m)^.*Another process changed our rules.*$`)

// fullSync is where it tells that all was compared and written.
var fullSync = regexp.MustCompile(`(?m)^I(\d{4} [\d:.]+) .*"Synced" full=true`)

// awaitFirstSyncLogged returns how long the log is that tells of the first sync: on a busy machine the
// line comes when the sync is long in force.
func awaitFirstSyncLogged(bed *testbed.Testbed, d *testbed.Daemon) int {
	bed.T.Helper()
	testbed.Eventually(bed.T, "the first sync in the log", func() bool { return fullSync.MatchString(d.Log()) })
	return len(d.Log())
}

// awaitRepair waits until the kernel equals a fresh rendering, and returns how long that took since the
// end of the change or, if it was faster, since its beginning.
func awaitRepair(bed *testbed.Testbed, mode string, d *testbed.Daemon, logged int, began, ended time.Time, want bool) (took []time.Duration) {
	bed.T.Helper()
	if want {
		testbed.Eventually(bed.T, "a full sync", func() bool { return fullSync.MatchString(d.Log()[logged:]) })
	}
	bed.AwaitFreshRules(mode)
	testbed.Eventually(bed.T, "the Service after it", bed.Answers(testbed.ClusterIP, testbed.PodA))
	if !want {
		testbed.Pause(bed.T, 500*time.Millisecond) // in which all is looked at again
	}
	syncs := fullSync.FindAllStringSubmatch(d.Log()[logged:], -1)
	if want != (len(syncs) > 0) || len(syncs) > 4 {
		bed.T.Errorf("%d full syncs", len(syncs))
	}
	if len(syncs) == 0 {
		return nil
	}
	at, err := time.ParseInLocation("2006 0102 15:04:05.000000", began.Format("2006 ")+syncs[len(syncs)-1][1], time.Local)
	if err != nil {
		bed.T.Fatal(err)
	}
	late := at.Sub(ended)
	if late < 0 {
		late = at.Sub(began)
	}
	if late > traffic.Scaled(testbed.RepairTime) {
		bed.T.Errorf("repaired after %v", late)
	}
	return []time.Duration{late}
}

// otherRules returns what is in the tables and chains that are not ours. A program of iptables
// tells some of it twice where the daemon writes meanwhile, so it is asked again.
func otherRules(bed *testbed.Testbed) string {
	bed.T.Helper()
	is := listOtherRules(bed)
	testbed.Eventually(bed.T, "the same listing twice", func() bool {
		was := is
		is = listOtherRules(bed)
		return is == was
	})
	return is
}

func listOtherRules(bed *testbed.Testbed) string {
	bed.T.Helper()
	return bed.Run("sh", "-c", `for t in 'inet others' 'inet firewalld' 'ip early' 'ip cni_hostport'; do nft -s list table $t; done 2>&1
for p in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $p-save | grep -v -e KUBE- -e '^#' -e COMMIT -e '^[*]' -e ' ACCEPT '; done | sed 's/ \[.*//'`)
}

// takePorts listens where mode userspace does: its address is refused, also if a process
// is ready to share, as long as that is another user's; others' are to be had.
func takePorts(bed *testbed.Testbed) error {
	return bed.Lab.Node().Do(func() error {
		for port := 10270; port < 10274; port++ {
			if l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port)); !errors.Is(err, unix.EADDRINUSE) {
				return fmt.Errorf("listen on port %d of ours: %v, error %w", port, l, err)
			}
			shares := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
				failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
				return errors.Join(failed, err)
			}}
			for _, at := range []string{"10.0.0.1", "192.168.0.2"} {
				l, err := shares.Listen(context.Background(), "tcp4", fmt.Sprintf("%s:%d", at, port))
				if err != nil {
					return err
				}
				bed.T.Cleanup(func() { l.Close() })
			}
		}
		return nil
	})
}
