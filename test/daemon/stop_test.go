package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
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
	"sluice/internal/proxy"
)

// stopped is how long daemons stand still.
var stopped = flag.Duration("stopped", 2*time.Second, "stop a daemon by SIGSTOP for at least this `TIME` in each mode")

// TestStopped stops a daemon with SIGSTOP for a while, as a debugger, a frozen cgroup or a starved
// machine does. Connections continue, although its health check does not answer. Meanwhile Services
// change, and other processes change nf_tables and the folder so often that the kernel drops
// events, including the one of the last change. When the daemon continues, it applies all of that
// at once.
func TestStopped(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			s := newSiteFor(t, mode)
			s.write("web.yaml", service("web", clusterIP, podA))
			s.write("six.yaml", service("six", clusterV6, podV6))
			d := s.start(nil)
			s.await()
			eventually(t, "health", func() bool { return s.livez() == nil })
			open := s.openEcho()
			load := s.load(4, clusterIP)

			g := gap{from: time.Now()}
			d.signal(syscall.SIGSTOP)
			again := time.After(*stopped)
			eventually(t, "silence about its health", func() bool { return s.livez() != nil })
			s.flood()
			s.overrun(d, mode)
			s.damage(mode)
			s.write("web.yaml", service("web", clusterIP, podB))
			<-again
			d.signal(syscall.SIGCONT)
			began := time.Now()
			g.until = func() time.Time { return began }
			eventually(t, "what changed meanwhile", s.answers(clusterIP, podB))
			s.isAsNew(mode)
			took := time.Since(began)
			if took > traffic.Scaled(repairTime) {
				t.Errorf("all was right after %v, want at most %v", took, traffic.Scaled(repairTime))
			}
			if err := s.livez(); err != nil {
				t.Errorf("its health afterwards: %v", err)
			}
			made, failed := load()
			if mode == "userspace" { // whose connections stand still with it
				s.report(outside(failed, g))
			} else {
				s.report(failed)
			}
			s.alive(open, "afterwards")
			for _, line := range lost(mode) {
				// It may read all files again before it comes to the word that some were lost.
				eventually(t, "line "+line+" in the log", func() bool { return strings.Contains(d.log(), line) })
			}
			reliability.Record(t, reliability.Result{
				Fault: "daemon stopped for a while (SIGSTOP), more changes than the kernel keeps", Mode: mode, Tried: 1,
				Requests: made, Failed: len(failed), Repairs: []time.Duration{took}, Note: fmt.Sprintf("stopped for %v", began.Sub(g.from).Round(time.Second)),
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

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// livez asks for the daemon's health.
func (s *site) livez() error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 300*time.Millisecond)
	defer cancel()
	at := netip.MustParseAddrPort("127.0.0.1:10256")
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.lab.Node().Dial(ctx, proxy.TCP, at.Addr(), at)
	}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/livez", nil)
	if err != nil {
		return err
	}
	answer, err := c.Do(r)
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
func (s *site) flood() {
	s.t.Helper()
	for i := range 20000 {
		name := []string{"web.yaml", "six.yaml"}[i%2] // the same event as the last is kept once
		if err := os.Chmod(filepath.Join(s.dir, name), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
}

// overrun changes a table of another's until the daemon's socket for changes of nf_tables
// has lost some.
func (s *site) overrun(d *process, mode string) {
	s.t.Helper()
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
	if err := s.lab.Node().Do(func() error {
		c, err := nft.Open()
		for ; err == nil && s.drops(d) == 0; err = c.Commit(s.t.Context(), &b) {
		}
		return errors.Join(err, c.Close())
	}); err != nil {
		s.t.Fatal(err)
	}
}

// drops returns how many messages of nf_tables the daemon's sockets have lost.
func (s *site) drops(d *process) (n int) {
	s.t.Helper()
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/netlink", d.Cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
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
func (s *site) damage(mode string) {
	s.t.Helper()
	switch mode {
	case "iptables":
		s.run("ip6tables-nft", "-t", "nat", "-F", "KUBE-SERVICES")
	case "nftables", "ebpf":
		s.run("nft", "delete", "table", "ip6", "sluice")
	default:
		s.run("nft", "delete", "table", "ip6", "sluice-"+mode)
	}
}
