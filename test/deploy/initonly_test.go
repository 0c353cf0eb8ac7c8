package deploy

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"sluice/internal/conformance/lab"
)

// TestInitContainer runs it on a node of its own, and looks at what it set: for
// the daemon, which may not, and for the mode that is to come.
func TestInitContainer(t *testing.T) {
	tests := []struct{ name, set, localnet string }{
		{"open", "config.mode=", "1"},
		{"nftables", "config.mode=nftables", "0"},
		{"ebpf", "config.mode=ebpf", "1"},
		{"iptables", "config.mode=iptables", "1"},
		{"iptables, loopback stays closed", "config.mode=iptables,config.iptables.localhostNodePorts=false", "0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lab.Require(t)
			l, err := lab.New(lab.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			r := helm(t, set(t, tt.set, "config.conntrack.tcpEstablishedTimeout=1h", "config.conntrack.maxPerCore=0"))
			words := append([]string{"--mount", "sh", "-c", withoutBPF, image(t)}, arguments(r.initial(), mounted(t, r))...)
			on(t, l.Node(), "unshare", words...)
			const settings = "/proc/sys/net/"
			if got := on(t, l.Node(), "cat", settings+"netfilter/nf_conntrack_tcp_timeout_established"); got != "3600" {
				t.Errorf("connections are given up after %s s, want 3600", got)
			}
			if got := on(t, l.Node(), "cat", settings+"ipv4/conf/all/route_localnet"); got != tt.localnet {
				t.Errorf("route_localnet is %s, want %s", got, tt.localnet)
			}
			guarded := strings.Contains(on(t, l.Node(), "sh", "-c", "iptables-nft-save; nft list ruleset"), "route_localnet is 1 because of this proxy")
			if guarded != (tt.localnet == "1") {
				t.Errorf("others are kept from loopback addresses: %t", guarded)
			}
		})
	}
}

// withoutBPF runs a program as in a container, which has the host's BPF file system
// only if that is mounted for it.
const withoutBPF = `umount --quiet --all --types bpf; exec "$0" "$@"`

// on runs a program on a node and returns what it prints.
func on(t *testing.T, node *lab.Host, program string, args ...string) string {
	t.Helper()
	var out, said bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, said.String())
	}
	return strings.TrimSpace(out.String())
}
