package explain

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// TestExplainNotSynced asks a daemon that has not heard of Services, since its API server
// does not answer: without rules, and then with those of an earlier run. It does not say
// what happens to packets, because it does not know which rules there are.
func TestExplainNotSynced(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			folder := bed.Flags[1]
			bed.Flags[0], bed.Flags[1] = "--master", "http://127.0.0.1:9"
			d := bed.Start(nil)
			testbed.Eventually(t, "an answer", func() bool { _, code := bed.Sluice("explain", testbed.ClusterIP.String()); return code == 1 })
			wantNothingKnown(bed)
			d.End(15)
			bed.Flags[0], bed.Flags[1] = "--manifests", folder
			d = bed.Start(nil)
			bed.AwaitSync()
			wantExplained(bed, "default/web", statusapi.Forwarded)
			if mode == "userspace" {
				return // Without a process nothing carries connections.
			}
			d.End(15)
			bed.Flags[0], bed.Flags[1] = "--master", "http://127.0.0.1:9"
			bed.Start(nil)
			testbed.Eventually(t, "an answer", func() bool { _, code := bed.Sluice("explain", "default/web"); return code == 1 })
			wantNothingKnown(bed)
			if _, fate := bed.Ask(testbed.ClientIP, testbed.ClusterIP); fate != traffic.Answered {
				t.Errorf("with the rules of the earlier run: %v", fate)
			}
		})
	}
}

// wantNothingKnown checks the answers about an address and a name, and the doubts, of a
// daemon that knows nothing yet.
func wantNothingKnown(bed *testbed.Testbed) {
	bed.T.Helper()
	for _, to := range []string{testbed.ClusterIP.String(), "default/web"} {
		e, code := explanation(bed, to)
		if code != 1 || e.Verdict != "unknown" || e.Reason != statusapi.NotSynced || !strings.Contains(e.Message, "Services are not known yet") {
			bed.T.Errorf("%s: exit %d, %s, %s: %s", to, code, e.Verdict, e.Reason, e.Message)
		}
	}
	text, code := bed.Sluice("status", "--wait=0s")
	if code != 1 || !strings.Contains(text, "NOT SYNCED YET: Services are not known yet") {
		bed.T.Errorf("--wait: exit %d, %s", code, text)
	}
	testbed.Eventually(bed.T, "the doubts", func() bool {
		text, _ = bed.Sluice("status")
		return strings.Contains(text, "SourceSilent, since") && strings.Contains(text, "connection refused")
	})
	if !strings.Contains(text, "NotSynced, since") || !strings.Contains(text, "nothing was heard of them since the start") {
		bed.T.Errorf("status says\n%s", text)
	}
}

// ownTable has another process own the table of the mode's rules for IPv6, empty: those for
// IPv4 stay in force, and no sync goes through.
func ownTable(bed *testbed.Testbed, table string) (release func()) {
	bed.T.Helper()
	cmd := exec.Command("nft", "-i")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = bed.Lab.Node().Start(cmd)
	}
	if err == nil {
		_, err = fmt.Fprintf(in, "delete table ip6 %s; add table ip6 %s { flags owner; }; add chain ip6 %s foreign\n", table, table, table)
	}
	if err != nil {
		bed.T.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = in.Close(); _ = cmd.Wait() })
	bed.T.Cleanup(release)
	holds := func() bool {
		_, code := bed.Call("nft", "list", "chain", "ip6", table, "foreign")
		return code == 0
	}
	testbed.Eventually(bed.T, "the owner of table "+table, holds)
	return release
}

// blockSyncs keeps syncs from going through; change is for the daemon.
func blockSyncs(bed *testbed.Testbed, mode string) (change func(*exec.Cmd), begin func() (end func())) {
	bed.T.Helper()
	if mode != "iptables" {
		bed.NeedLinux("5.12", "tables have owners")
		table := map[string]string{"nftables": "sluice", "ipvs": "sluice-ipvs", "userspace": "sluice-userspace", "ebpf": "sluice"}[mode]
		return nil, func() func() { return ownTable(bed, table) }
	}
	gate := filepath.Join(bed.T.TempDir(), "gate")
	change = bed.WrapProgram("iptables-nft-restore", "if [ -e "+gate+" ]; then echo the disk is full >&2; exit 4; fi; exec $REAL \"$@\"")
	return change, func() func() {
		if err := os.WriteFile(gate, nil, 0o644); err != nil {
			bed.T.Fatal(err)
		}
		return func() { _ = os.Remove(gate) }
	}
}

// TestExplainNotSyncedAnyMore has syncs fail after the first. A Service that comes then
// is not served, and explain says so.
func TestExplainNotSyncedAnyMore(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			change, begin := blockSyncs(bed, mode)
			bed.Write("web.yaml", stuck("", "TCP", testbed.PodA.String()))
			bed.Start(change)
			bed.AwaitSync()
			wantExplained(bed, "default/stuck", statusapi.Forwarded)
			end := begin()
			bed.Write("late.yaml", testbed.Service("late", testbed.SecondIP, testbed.PodB))
			var e statusapi.Explanation
			testbed.Eventually(t, "the failure", func() bool {
				text, _ := bed.Sluice("explain", "default/late", "--from", testbed.ClientIP.String(), "--in", lab.Bridge, "-o", "json")
				return json.Unmarshal([]byte(text), &e) == nil && e.Reason == statusapi.NotSynced
			})
			wantPacketAsExplained(bed, &e)
			if _, fate := bed.Ask(testbed.ClientIP, netip.MustParseAddrPort(stuckIP+":80")); fate != traffic.Answered {
				t.Errorf("the Service that was there before: %v", fate)
			}
			end()
			testbed.Eventually(t, "the Service", func() bool { _, code := bed.Sluice("explain", "default/late"); return code == 0 })
			wantExplained(bed, "default/late", statusapi.Forwarded)
		})
	}
}
