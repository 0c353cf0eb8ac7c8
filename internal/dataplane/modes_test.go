package dataplane

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sluice/internal/config"
	"sluice/internal/proxy"
)

func TestModesAreComplete(t *testing.T) {
	for _, m := range Modes() {
		if m.Name == "" || m.Probe == nil || m.Prepare == nil || m.Open == nil || m.Cleanup == nil || m.Render == nil ||
			len(m.Balancing) == 0 {
			t.Errorf("mode %q is incomplete: %+v", m.Name, m)
		}
	}
}

// TestModesAreDocumented compares docs/modes.md with the table of modes.
func TestModesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/modes.md")
	if err != nil {
		t.Fatal(err)
	}
	word := map[bool]string{false: "no", true: "yes"}
	for _, m := range table() {
		row := "| " + string(m.Name) + " |"
		for _, b := range proxy.Balancings {
			text := word[slices.Contains(m.Balancing, b)]
			if b == m.Balancing[0] {
				text = "**yes**"
			}
			row += " " + text + " |"
		}
		if row += " " + word[m.Weights] + " |\n"; !strings.Contains(string(page), row) {
			t.Errorf("the table of docs/modes.md has no row %s", row)
		}
	}
}

func TestUnknownModes(t *testing.T) {
	tests := []struct {
		mode config.ProxyMode
		want string
	}{
		{"kernelspace", `mode kernelspace is for another operating system; modes: nftables, iptables, ipvs, userspace, ebpf`},
		{"NFTables", `no such mode; modes: nftables, iptables, ipvs, userspace, ebpf`},
		{"foo", `no such mode; modes: nftables, iptables, ipvs, userspace, ebpf`},
	}
	for _, tt := range tests {
		if _, err := Of(tt.mode); err == nil || err.Error() != tt.want {
			t.Errorf("Of(%q): error %v, want %q", tt.mode, err, tt.want)
		}
	}
}

// TestSystemWithoutModes checks the error on an operating system without modes.
func TestSystemWithoutModes(t *testing.T) {
	want := "no proxy mode is built for " + runtime.GOOS + " yet, only for Linux and Windows"
	for _, name := range []config.ProxyMode{"", config.NFTables, "foo"} {
		if _, err := find(nil, name); err == nil || err.Error() != want {
			t.Errorf("mode %q: error %v, want %q", name, err, want)
		}
	}
}
