package main

import (
	"bytes"
	"testing"
)

func TestExitCodes(t *testing.T) {
	tests := []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"unknown flag", []string{"--nope"}, 1, "Error: unknown flag: --nope (sluice --help lists the flags)\n"},
		{"no such file", []string{"--config=/none"}, 1, "Error: --config \"/none\": open /none: no such file or directory\n"},
		{
			"contradiction",
			[]string{"--cleanup", "--init-only"},
			1,
			"Error: --cleanup and --init-only: one removes what the other prepares for\n",
		},
		{"version", []string{"--version"}, 0, ""},
		{"help", []string{"-h"}, 0, ""},
		{"bad flag", []string{"--proxy-mode=magic"}, 1, "Error: --proxy-mode \"magic\": no such mode; modes: nftables, iptables, ipvs, userspace, ebpf\n"},
		{"no answer", []string{"render", "--manifests=/none"}, 2, "Error: --manifests \"/none\": open /none: no such file or directory\n"},
		{"no such flag of a command", []string{"render", "--nope"}, 2, "Error: unknown flag: --nope (sluice render --help lists the flags)\n"},
		{
			"bad folder",
			[]string{"--manifests=/none"},
			1,
			"Error: --manifests \"/none\": open /none: no such file or directory\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(t.Context(), append([]string{"sluice"}, tt.args...), &stderr, nil); code != tt.code || stderr.String() != tt.stderr {
				t.Errorf("exit code %d, stderr %q, want %d, %q", code, stderr.String(), tt.code, tt.stderr)
			}
		})
	}
}
