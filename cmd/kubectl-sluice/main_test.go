package main

import (
	"bytes"
	"context"
	"testing"
)

func TestExitCodes(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	tests := []struct {
		name   string
		ctx    context.Context
		args   []string
		code   int
		stderr string
	}{
		{"version", t.Context(), []string{"--version"}, 0, ""},
		{"no file", t.Context(), []string{"status", "--kubeconfig=/none"}, 2, "Error: read the kubeconfig: stat /none: no such file or directory\n"},
		{"no command", t.Context(), []string{"stats"}, 2, "Error: no command \"stats\": did you mean kubectl sluice status?\n"},
		{"interrupted before an answer", ended, []string{"status", "--server=http://127.0.0.1:1"}, 2, "Error: list pods: context canceled\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(tt.ctx, tt.args, &stderr); code != tt.code || stderr.String() != tt.stderr {
				t.Errorf("exit code %d, stderr %q, want %d, %q", code, stderr.String(), tt.code, tt.stderr)
			}
		})
	}
}
