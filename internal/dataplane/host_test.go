package dataplane

import (
	"embed"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ipt"
)

//go:embed testdata
var testdata embed.FS

// words replaces the placeholders in the files by the addresses of a family.
var words = map[ipt.Family]*strings.Replacer{
	ipt.IPv4: strings.NewReplacer("FAMILY", "ip", "ADDR", "ipv4_addr", "MASK", "255.255.255.255",
		"VIPBARE1", "10.96.0.10", "VIPBARE2", "10.96.0.11", "VIP1", "10.96.0.10/32", "VIP2", "10.96.0.11/32", "LBIP", "203.0.113.7/32",
		"PODS", "10.244.0.0/16", "POD1BARE", "10.244.0.2", "POD2BARE", "10.244.0.3", "POD1PORT", "10.244.0.2:8080", "POD2PORT", "10.244.0.3:8080",
		"POD1", "10.244.0.2/32", "POD2", "10.244.0.3/32", "ROUTERSET", "KUBE-SRC-5M6VBQYA4MVW3SXO", "SET", "KUBE-", "INET", "inet"),
	ipt.IPv6: strings.NewReplacer("FAMILY", "ip6", "ADDR", "ipv6_addr", "MASK", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"VIPBARE1", "fd00:96::10", "VIPBARE2", "fd00:96::11", "VIP1", "fd00:96::10/128", "VIP2", "fd00:96::11/128", "LBIP", "2001:db8::7/128",
		"PODS", "fd00:244::/64", "POD1BARE", "fd00:244::2", "POD2BARE", "fd00:244::3", "POD1PORT", "[fd00:244::2]:8080", "POD2PORT", "[fd00:244::3]:8080",
		"POD1", "fd00:244::2/128", "POD2", "fd00:244::3/128", "ROUTERSET", "inet6:KUBE-SRC-5M6VBQYA4MVW3SX", "SETLOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-CID", "SETNODE-PORT-LOCAL-SCTP-HASH", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
		"SET", "KUBE-6-", "INET", "inet6"),
}

// file returns a file with the words of a family.
func file(t *testing.T, f ipt.Family, name string) string {
	t.Helper()
	b, err := testdata.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return words[f].Replace(string(b))
}

// command runs a program with input and returns its output.
func command(t *testing.T, input, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s (make deps installs what is missing)", name, strings.Join(args, " "), err, said.String())
	}
	return string(out)
}

// restore loads rules.
func restore(t *testing.T, f ipt.Family, v ipt.Variant, rules string) {
	t.Helper()
	command(t, rules, ipt.Name(f, v)+"-restore", "--noflush", "-w", "5")
}

// loadForeign makes a host full of what is not kube-proxy's.
func loadForeign(t *testing.T, v ipt.Variant) {
	t.Helper()
	command(t, words[ipt.IPv4].Replace("create ROUTERSET hash:ip timeout 0\nadd ROUTERSET POD1BARE\ncreate KUBE-CLUSTER-IP-OF-MINE hash:ip\ncreate mine list:set\nadd mine ROUTERSET\n"), "ipset", "restore")
	command(t, words[ipt.IPv6].Replace("create ROUTERSET hash:ip family inet6 timeout 0\nadd ROUTERSET POD1BARE\n"), "ipset", "restore")
	for _, f := range ipt.Families() {
		restore(t, f, v, file(t, f, "foreign.rules"))
	}
	command(t, file(t, ipt.IPv4, "foreign.nft"), "nft", "-f", "-")
	addLink(t, "kube-ipvs1")
	addLink(t, "cni0", "10.244.0.1/16", "fd00:244::1/64")
}

// addLink makes a link with addresses: a dummy link if the kernel has such.
func addLink(t *testing.T, name string, addrs ...string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	var link netlink.Link = &netlink.Dummy{LinkAttrs: attrs}
	if err := netlink.LinkAdd(link); err != nil {
		link = &netlink.Ifb{LinkAttrs: attrs}
		if err := netlink.LinkAdd(link); err != nil {
			t.Fatalf("add link %s: %v", name, err)
		}
	}
	for _, a := range addrs {
		p := netip.MustParsePrefix(a)
		ip := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}); err != nil {
			t.Fatalf("add address %s to link %s: %v", a, name, err)
		}
	}
}

// kubeProxyLinks returns how many links kube-proxy can have: one if the kernel has
// dummy links.
func kubeProxyLinks(t *testing.T) int {
	t.Helper()
	try := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "try"}}
	if err := netlink.LinkAdd(try); err != nil {
		return 0
	}
	if err := netlink.LinkDel(try); err != nil {
		t.Fatal(err)
	}
	return 1
}

func loadIPTables(t *testing.T, v ipt.Variant) {
	t.Helper()
	for _, f := range ipt.Families() {
		restore(t, f, v, file(t, f, "iptables.rules"))
	}
}

func loadIPVS(t *testing.T, v ipt.Variant) {
	t.Helper()
	const sets = `create SETLOOP-BACK hash:ip,port,ip family INET
create SETCLUSTER-IP hash:ip,port family INET
create SETEXTERNAL-IP hash:ip,port family INET
create SETEXTERNAL-IP-LOCAL hash:ip,port family INET
create SETLOAD-BALANCER hash:ip,port family INET
create SETLOAD-BALANCER-FW hash:ip,port family INET
create SETLOAD-BALANCER-LOCAL hash:ip,port family INET
create SETLOAD-BALANCER-SOURCE-IP hash:ip,port,ip family INET
create SETLOAD-BALANCER-SOURCE-CIDR hash:ip,port,net family INET
create SETNODE-PORT-TCP bitmap:port range 0-65535
create SETNODE-PORT-LOCAL-TCP bitmap:port range 0-65535
create SETNODE-PORT-UDP bitmap:port range 0-65535
create SETNODE-PORT-LOCAL-UDP bitmap:port range 0-65535
create SETNODE-PORT-SCTP-HASH hash:ip,port family INET
create SETNODE-PORT-LOCAL-SCTP-HASH hash:ip,port family INET
create SETHEALTH-CHECK-NODE-PORT bitmap:port range 0-65535
create SETIPVS-IPS hash:ip family INET
add SETCLUSTER-IP VIPBARE1,tcp:80
add SETNODE-PORT-TCP 30080
add SETLOAD-BALANCER-SOURCE-CIDR VIPBARE2,tcp:80,PODS
`
	for _, f := range ipt.Families() {
		command(t, words[f].Replace(sets), "ipset", "restore")
		restore(t, f, v, file(t, f, "ipvs.rules"))
	}
	if kubeProxyLinks(t) > 0 {
		addLink(t, "kube-ipvs0", "10.96.0.10/32", "10.96.0.11/32", "fd00:96::10/128")
	}
}

func loadNFTables(t *testing.T, _ ipt.Variant) {
	t.Helper()
	for _, f := range ipt.Families() {
		command(t, file(t, f, "kube-proxy.nft"), "nft", "-f", "-")
	}
}

var counters = regexp.MustCompile(`\[\d+:\d+\]|packets \d+ bytes \d+|(?m)^# .*\n`)

// snapshot returns everything the host holds, without counters and dates.
func snapshot(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	add := func(name string, args ...string) {
		b.WriteString("## " + name + " " + strings.Join(args, " ") + "\n")
		b.WriteString(counters.ReplaceAllString(command(t, "", name, args...), ""))
	}
	for _, v := range ipt.Variants() {
		for _, f := range ipt.Families() {
			add(ipt.Name(f, v) + "-save")
		}
	}
	add("nft", "list", "ruleset")
	add("ipset", "list")
	add("ip", "addr")
	add("ip", "-4", "route", "show", "table", "all") // those of IPv6 come and go a little later
	return b.String()
}
