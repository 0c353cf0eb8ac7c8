package bugreport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"sluice/internal/statusapi"
)

// sysctls are patterns of the kernel settings that affect Services.
var sysctls = []string{
	"net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/route_localnet",
	"net/ipv4/conf/all/arp_*", "net/ipv4/vs/*", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6",
	"net/bridge/bridge-nf-call-*", "net/netfilter/nf_conntrack_*", "net/core/somaxconn",
}

// host adds facts about the kernel, and how the daemon was started. It does not read the
// daemon's environment, which may have secrets.
func (c *Contents) host(s Settings) {
	text, err := files(s.Host, "proc/version", "etc/os-release", "proc/modules")
	c.add("kernel.txt", "the kernel, its modules, the operating system", text, err)
	text, err = readSysctls(s.Host)
	c.add("sysctls.txt", "settings of the kernel", text, err)
	pid, err := statusapi.Peer(s.Socket)
	if err == nil {
		process := fmt.Sprintf("proc/%d/", pid)
		text, err = files(s.Host, process+"cmdline", process+"status", process+"limits")
	}
	c.add("process.txt", "the daemon's flags, memory and limits", bytes.ReplaceAll(text, []byte{0}, []byte(" ")), err)
}

// files returns the contents of some files. Files that cannot be read are left out; it
// returns an error only if none can be read.
func files(host fs.FS, names ...string) (all []byte, err error) {
	for _, name := range names {
		text, failed := fs.ReadFile(host, name)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		all = fmt.Appendf(all, "# /%s\n%s\n", name, bytes.TrimSpace(text))
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, err
}

func readSysctls(host fs.FS) (all []byte, err error) {
	const root = "proc/sys/"
	for _, pattern := range sysctls {
		names, err := fs.Glob(host, root+pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if value, err := fs.ReadFile(host, name); err == nil { // some are write-only
				all = fmt.Appendf(all, "%s = %s\n", strings.TrimPrefix(name, root), bytes.TrimSpace(value))
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no setting can be read from /proc/sys")
	}
	return all, nil
}

// listing is a program that lists rules, and which of its lines belong to the report.
type listing struct {
	file    string
	program []string
	ours    func(line string) bool // nil: all lines are ours
}

// listings has, by mode, the programs that list the tables and chains of the mode.
var listings = map[string][]listing{
	"nftables":  nft("sluice"),
	"ebpf":      nft("sluice"),
	"userspace": nft("sluice-userspace"),
	"ipvs":      append(nft("sluice-ipvs"), listing{"ipvs.txt", []string{"ipvsadm", "--list", "--numeric"}, nil}),
	"iptables": {
		{"iptables.txt", []string{"iptables-save"}, kubeRule},
		{"ip6tables.txt", []string{"ip6tables-save"}, kubeRule},
	},
}

// nft returns listings of a table, for both families.
func nft(table string) (both []listing) {
	for _, family := range []string{"ip", "ip6"} {
		both = append(both, listing{table + "-" + family + ".txt", []string{"nft", "list", "table", family, table}, nil})
	}
	return both
}

// kubeRule reports whether a line of iptables-save is a chain or a rule of ours, or a
// rule that jumps to one of our chains.
func kubeRule(line string) bool {
	return strings.HasPrefix(line, ":KUBE-") || strings.HasPrefix(line, "-A KUBE-") || strings.Contains(line, " -j KUBE-")
}

// rules adds our rules, as the mode reads them and as the usual programs list them. If
// mode is empty, because it is not known, it adds the listings of all modes.
func (c *Contents) rules(ctx context.Context, s Settings, mode string) {
	some := listings[mode]
	if mode != "" {
		text, err := s.Rules(ctx, mode)
		c.add("rules.txt", "what the kernel has of Services, as mode "+mode+" reads it", text, err)
	} else {
		for _, m := range slices.Sorted(maps.Keys(listings)) {
			if m != "ebpf" { // which has the same listings as mode nftables
				some = append(some, listings[m]...)
			}
		}
	}
	for _, l := range some {
		text, err := s.Run(ctx, l.program[0], l.program[1:]...)
		if err == nil && l.ours != nil {
			text = l.filter(text)
		}
		if err == nil && len(text) == 0 {
			err = errors.New("there are no rules")
		}
		c.add(l.file, "our rules, by "+strings.Join(l.program, " "), text, err)
	}
}

// filter returns our lines of iptables-save, below the names of their tables.
func (l listing) filter(text []byte) (ours []byte) {
	table := ""
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "*"):
			table = line
		case l.ours(line):
			ours = append(ours, table+line...)
			table = ""
		}
	}
	return ours
}
