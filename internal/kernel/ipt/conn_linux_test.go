package ipt_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
)

// programs writes scripts to a temporary folder and makes it the PATH.
func programs(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

func TestOpen(t *testing.T) {
	const nft, legacy, old = "echo 'iptables v1.8.9 (nf_tables)'", "echo 'iptables v1.8.9 (legacy)'", "echo 'iptables v1.6.2'"
	tests := []struct {
		name    string
		scripts map[string]string
		variant ipt.Variant
		want    string // the base name of the program, or the error
	}{
		{"none", nil, ipt.NFT, "find programs iptables-nft-save and iptables-nft-restore: not installed"},
		{"full name", map[string]string{"iptables": legacy, "iptables-save": "", "iptables-restore": "", "iptables-nft": nft, "iptables-nft-save": "", "iptables-nft-restore": ""}, ipt.NFT, "iptables-nft-save"},
		{"short name", map[string]string{"iptables": nft, "iptables-save": "", "iptables-restore": ""}, ipt.NFT, "iptables-save"},
		{"short name of the other", map[string]string{"iptables": nft, "iptables-save": "", "iptables-restore": ""}, ipt.Legacy, "find programs iptables-legacy-save and iptables-legacy-restore: not installed"},
		{"version without variants", map[string]string{"iptables": old, "iptables-save": "", "iptables-restore": ""}, ipt.Legacy, "iptables-save"},
		{"too old", map[string]string{"iptables": "echo iptables v1.4.21", "iptables-save": "", "iptables-restore": ""}, ipt.Legacy, `version "iptables v1.4.21" is too old`},
		{"incomplete", map[string]string{"iptables-nft": nft, "iptables-nft-save": ""}, ipt.NFT, "not installed"},
		{"broken", map[string]string{"iptables-nft": "echo no such library >&2; exit 127", "iptables-nft-save": "", "iptables-nft-restore": ""}, ipt.NFT, "run iptables-nft --version: exit status 127: no such library"},
		{"nonsense", map[string]string{"iptables": "echo 'iptables v9 (ebpf)'", "iptables-save": "", "iptables-restore": ""}, ipt.Legacy, "not installed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			programs(t, tt.scripts)
			c, err := ipt.Open(t.Context(), ipt.IPv4, tt.variant)
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
				if missing := strings.Contains(tt.want, "not installed"); errors.Is(err, ipt.ErrMissing) != missing {
					t.Errorf("error %v is ErrMissing: %t", err, !missing)
				}
				return
			}
			if got := filepath.Base(c.SaveProgram()); got != tt.want {
				t.Errorf("found %s, want %s", got, tt.want)
			}
		})
	}
}

// TestLock checks that a restore fails while another process holds the lock. The lock
// is a file of the test.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	held, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	c := openInNamespace(t, ipt.IPv4, ipt.Legacy)
	c.LockWait = time.Second
	err = c.Restore(t.Context(), []byte(base))
	if !errors.Is(err, ipt.ErrLocked) || !strings.Contains(err.Error(), "iptables-legacy-restore --noflush -w 1") {
		t.Errorf("error %v, want one that names the lock and the command", err)
	}
	wantRules(t, c, map[string][]string{})

	if err := unix.Flock(int(held.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := c.Restore(t.Context(), []byte(base)); err != nil {
		t.Errorf("after the lock was released: %v", err)
	}
}

func TestContextEndsSave(t *testing.T) {
	programs(t, map[string]string{"iptables-nft": "echo 'iptables v1.8.9 (nf_tables)'", "iptables-nft-save": "exec /bin/sleep 600", "iptables-nft-restore": ""})
	c, err := ipt.Open(t.Context(), ipt.IPv4, ipt.NFT)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Save(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
}

// TestRestoreCompletes ends the context during a restore. The program must still read
// all of its input, and must not be in our process group.
func TestRestoreCompletes(t *testing.T) {
	dir := t.TempDir()
	began, goOn, taken := filepath.Join(dir, "began"), filepath.Join(dir, "go-on"), filepath.Join(dir, "taken")
	programs(t, map[string]string{
		"iptables-nft": "echo 'iptables v1.8.9 (nf_tables)'", "iptables-nft-save": "",
		// Built-in commands of the shell only: a virtual machine of the tests has no others.
		"iptables-nft-restore": "read -r _ _ _ _ group _ < /proc/$$/stat && echo $group > " + began +
			" && while ! [ -e " + goOn + " ]; do :; done; while IFS= read -r line; do printf '%s\\n' \"$line\"; done > " + taken,
	})
	c, err := ipt.Open(t.Context(), ipt.IPv4, ipt.NFT)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Restore(ctx, []byte(base)) }()
	group := waitForFile(t, began)
	if own := strconv.Itoa(unix.Getpgrp()); group == own {
		t.Errorf("the program is in our process group, %s", own)
	}
	cancel()
	if err := os.WriteFile(goOn, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("error %v of a restore that had begun; want none", err)
	}
	if got, err := os.ReadFile(taken); string(got) != base || err != nil {
		t.Errorf("the program got %q, error %v", got, err)
	}
	if err := c.Restore(ctx, []byte(base)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of a restore after the end of the context, want the context's", err)
	}
}

// waitForFile returns the first line of a file as soon as it is complete.
func waitForFile(t *testing.T, path string) string {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		b, _ := os.ReadFile(path)
		if line, ok := strings.CutSuffix(string(b), "\n"); ok {
			return line
		}
	}
	t.Fatalf("%s was not written within 10 s", path)
	return ""
}

func TestRestoreErrorHasOutput(t *testing.T) {
	c := openInNamespace(t, ipt.IPv6, ipt.Legacy)
	err := c.Restore(t.Context(), []byte("*nat\n:A - [0:0]\n-A A --bogus\nCOMMIT\n"))
	for _, want := range []string{`line 3 "-A A --bogus"`, "ip6tables-legacy-restore", `unknown option "--bogus"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestLegacyTables(t *testing.T) {
	c := openInNamespace(t, ipt.IPv6, ipt.Legacy)
	want := func(f ipt.Family, want []string) {
		t.Helper()
		got, err := ipt.LegacyTables(f)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, append([]string(nil), got...)); diff != "" {
			t.Errorf("tables (-want +got):\n%s", diff)
		}
	}
	want(ipt.IPv6, nil)
	if _, err := c.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(ipt.IPv6, nil) // Save creates no table
	if err := c.Restore(t.Context(), []byte(base)); err != nil {
		t.Fatal(err)
	}
	want(ipt.IPv6, []string{"nat"})
	want(ipt.IPv4, nil)
}

func TestFakeFailsAndCounts(t *testing.T) {
	k := ipttest.NewFake()
	broken := errors.New("broken")
	k.Fail(broken)
	if err := k.Restore(t.Context(), []byte(base)); !errors.Is(err, broken) {
		t.Errorf("restore: %v", err)
	}
	if _, err := k.Save(t.Context()); !errors.Is(err, broken) {
		t.Errorf("save: %v", err)
	}
	k.Fail(nil)
	if err := k.Restore(t.Context(), []byte(base)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ipttest.Count{Saves: 1, Restores: 2, Lines: 7}, k.Reset()); diff != "" {
		t.Errorf("count (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(ipttest.Count{}, k.Reset()); diff != "" {
		t.Errorf("count after a reset (-want +got):\n%s", diff)
	}
}
