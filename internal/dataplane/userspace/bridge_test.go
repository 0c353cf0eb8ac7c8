package userspace

import (
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"

	"sluice/internal/kernel/sysctl/sysctltest"
)

// TestWarnOfBridges checks that one line names each sysctl that keeps pods on a bridge from
// being served, and that there is none otherwise.
func TestWarnOfBridges(t *testing.T) {
	const four, six = "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"
	for _, tt := range []struct {
		name   string
		values map[string]string
		want   []string
	}{
		{"no br_netfilter", nil, nil},
		{"off", map[string]string{four: "0", six: "0"}, nil},
		{"IPv4", map[string]string{four: "1", six: "0"}, []string{"net.bridge.bridge-nf-call-iptables"}},
		{"both", map[string]string{four: "1", six: "1"}, []string{"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			warnOfBridges(log, sysctltest.NewFake(tt.values))
			lines := strings.Split(strings.TrimSpace(log.GetSink().(ktesting.Underlier).GetBuffer().String()), "\n")
			if lines[0] == "" {
				lines = nil
			}
			if len(lines) != len(tt.want) {
				t.Fatalf("logged %q, want %d lines", lines, len(tt.want))
			}
			for i, w := range tt.want {
				if !strings.Contains(lines[i], `sysctl="`+w+`"`) {
					t.Errorf("line %q does not name %s", lines[i], w)
				}
			}
		})
	}
}
