package faults

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/internal/kernel/nft"
	"sluice/test/daemon/testbed"
)

// stopped is how long daemons stand still.
var stopped = flag.Duration("stopped", 2*time.Second, "stop a daemon by SIGSTOP for at least this `TIME` in each mode")

// TestStopped stops a daemon with SIGSTOP for a while, as a debugger, a frozen cgroup or a starved
// machine does. Connections continue, although its health check does not answer. Meanwhile Services
// change, and other processes change nf_tables and the folder so often that the kernel drops
// events, including the one of the last change. When the daemon continues, it applies all of that
// at once.
func TestStopped(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("six.yaml", testbed.Service("six", testbed.ClusterV6, testbed.PodV6))
			d := bed.Start(nil)
			bed.AwaitSync()
			testbed.Eventually(t, "health", func() bool { return livez(bed) == nil })
			open := bed.OpenEcho()
			load := bed.Load(4, testbed.ClusterIP)

			g := testbed.Gap{From: time.Now()}
			signal(d, syscall.SIGSTOP)
			again := time.After(*stopped)
			testbed.Eventually(t, "silence about its health", func() bool { return livez(bed) != nil })
			flood(bed)
			overrun(bed, d, mode)
			damage(bed, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
			<-again
			signal(d, syscall.SIGCONT)
			began := time.Now()
			g.Until = func() time.Time { return began }
			testbed.Eventually(t, "what changed meanwhile", bed.Answers(testbed.ClusterIP, testbed.PodB))
			bed.AwaitFreshRules(mode)
			took := time.Since(began)
			if took > traffic.Scaled(testbed.RepairTime) {
				t.Errorf("all was right after %v, want at most %v", took, traffic.Scaled(testbed.RepairTime))
			}
			if err := livez(bed); err != nil {
				t.Errorf("its health afterwards: %v", err)
			}
			made, failed := load()
			if mode == "userspace" { // whose connections stand still with it
				bed.Report(testbed.Outside(failed, g))
			} else {
				bed.Report(failed)
			}
			bed.WantAlive(open, "afterwards")
			for _, line := range lost(mode) {
				// It may read all files again before it comes to the word that some were lost.
				d.AwaitLog(line)
			}
			reliability.Record(t, reliability.Result{
				Fault: "daemon stopped for a while (SIGSTOP), more changes than the kernel keeps", Mode: mode, Tried: 1,
				Requests: made, Failed: len(failed), Repairs: []time.Duration{took}, Note: fmt.Sprintf("stopped for %v", began.Sub(g.From).Round(time.Second)),
			})
		})
	}
}

// lost are the lines that tell of messages that were lost. Mode iptables looks at a number of the
// kernel's instead.
func lost(mode string) []string {
	lines := []string{"Manifest folder events were lost"}
	if mode != "iptables" {
		lines = append(lines, "unknown changes, because notifications of the kernel were lost")
	}
	return lines
}

func signal(d *testbed.Daemon, sig syscall.Signal) {
	d.T.Helper()
	if err := d.Cmd.Process.Signal(sig); err != nil {
		d.T.Fatal(err)
	}
}

// livez asks for the daemon's health.
func livez(bed *testbed.Testbed) error {
	answer, err := bed.HTTP(300 * time.Millisecond).Get("http://127.0.0.1:10256/livez")
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", answer.Status)
	}
	return nil
}

// flood touches files of the folder more often than the kernel keeps events.
func flood(bed *testbed.Testbed) {
	bed.T.Helper()
	for i := range 20000 {
		name := []string{"web.yaml", "six.yaml"}[i%2] // the same event as the last is kept once
		if err := os.Chmod(filepath.Join(bed.Dir, name), 0o644); err != nil {
			bed.T.Fatal(err)
		}
	}
}

// overrun changes a table of another's until the daemon's socket for changes of nf_tables
// has lost some.
func overrun(bed *testbed.Testbed, d *testbed.Daemon, mode string) {
	bed.T.Helper()
	if mode == "iptables" {
		return
	}
	table := nft.Table{Family: nft.IP, Name: "flood"}
	wide := &nft.Set{Table: table, Name: "s", Key: []nft.Type{nft.IPv6Addr, nft.IPv6Addr, nft.IPv6Addr, nft.IPv6Addr}} // 64 bytes
	var b nft.Batch
	b.AddTable(table)
	b.AddSet(wide)
	for i := range 50000 {
		b.AddElement(wide, nft.Element{Key: fmt.Sprintf("%064d", i)})
	}
	b.DeleteTable(table)
	if err := bed.Lab.Node().Do(func() error {
		c, err := nft.Open()
		for ; err == nil && drops(bed, d) == 0; err = c.Commit(bed.T.Context(), &b) {
		}
		return errors.Join(err, c.Close())
	}); err != nil {
		bed.T.Fatal(err)
	}
}

// drops returns how many messages of nf_tables the daemon's sockets have lost.
func drops(bed *testbed.Testbed, d *testbed.Daemon) (n int) {
	bed.T.Helper()
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/netlink", d.Cmd.Process.Pid))
	if err != nil {
		bed.T.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		f := strings.Fields(line) // sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		if len(f) < 10 || f[1] != strconv.Itoa(unix.NETLINK_NETFILTER) {
			continue
		}
		groups, err := strconv.ParseUint(f[3], 16, 64)
		if err == nil && groups&(1<<(unix.NFNLGRP_NFTABLES-1)) != 0 {
			lost, _ := strconv.Atoi(f[8])
			n += lost
		}
	}
	return n
}

// damage takes rules for IPv6 away.
func damage(bed *testbed.Testbed, mode string) {
	bed.T.Helper()
	switch mode {
	case "iptables":
		bed.Run("ip6tables-nft", "-t", "nat", "-F", "KUBE-SERVICES")
	case "nftables", "ebpf":
		bed.Run("nft", "delete", "table", "ip6", "sluice")
	default:
		bed.Run("nft", "delete", "table", "ip6", "sluice-"+mode)
	}
}

// TestStoppedDaemonIsNamed asks about a daemon that is stopped, and from another network
// namespace. Status fails at once and names the process, and a report has what can be read.
func TestStoppedDaemonIsNamed(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	d := bed.Start(nil)
	bed.AwaitSync()
	if text, _ := bed.Sluice("status"); strings.Contains(text, "DOUBT") {
		t.Errorf("doubts of a daemon that works:\n%s", text)
	}
	outside, err := exec.Command(testbed.Binary(t), "status", "--socket", bed.Socket).Output()
	if want := fmt.Sprintf("process %d, is in another network namespace than this command", d.Cmd.Process.Pid); err != nil || !strings.Contains(string(outside), want) {
		t.Errorf("from another network namespace: error %v, want %q in\n%s", err, want, outside)
	}
	signal(d, syscall.SIGSTOP)
	defer signal(d, syscall.SIGCONT)
	testbed.Eventually(t, "a daemon that is stopped", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Cmd.Process.Pid))
		return err == nil && strings.Contains(string(state), "State:\tT")
	})
	began := time.Now()
	text, code := bed.Sluice("status")
	want := fmt.Sprintf("does not answer: process %d is stopped, kill -CONT %d continues it", d.Cmd.Process.Pid, d.Cmd.Process.Pid)
	if took := time.Since(began); code != 2 || !strings.Contains(text, want) || took > traffic.Scaled(2*time.Second) {
		t.Errorf("exit %d after %v, want %q: %s", code, took, want, text)
	}
	report := filepath.Join(t.TempDir(), "r.tar.gz")
	began = time.Now()
	text, code = bed.Sluice("bugreport", "-o", report)
	if took := time.Since(began); code != 0 || !strings.Contains(text, want) || took > traffic.Scaled(10*time.Second) {
		t.Errorf("bugreport: exit %d after %v: %s", code, took, text)
	}
	if rules := bed.Run("tar", "-xzOf", report, "--wildcards", "*/sluice-ip.txt"); !strings.Contains(rules, testbed.ClusterIP.Addr().String()) {
		t.Errorf("the report lacks the rules: %s", rules)
	}
}
