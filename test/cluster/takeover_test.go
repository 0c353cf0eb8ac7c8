package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/test/cluster/testbed"
)

// The proxies that follow each other.
func sluiceNFTables() turn {
	return turn{name: "sluice/nftables", traces: "table sluice", table: "table sluice", proxy: testbed.Proxy{Mode: testbed.NFTables}}
}

func sluiceIPTables() turn {
	return turn{name: "sluice/iptables", traces: "iptables-nft", proxy: testbed.Proxy{Mode: testbed.IPTables}}
}

func kubeProxyNFTables() turn {
	return turn{
		name: "kube-proxy/nftables", traces: "table kube-proxy",
		proxy: testbed.Proxy{Mode: testbed.NFTables, KubeProxy: true},
	}
}

func kubeProxyIPTables() turn {
	return turn{
		name: "kube-proxy/iptables", traces: "iptables-nft",
		proxy: testbed.Proxy{Mode: testbed.IPTables, KubeProxy: true},
	}
}

// TestTakeover lets proxies follow each other on each node while connections
// are open and new ones keep coming: our modes, kube-proxy's modes, in both
// variants of iptables, there and back. Not one connection may break or fail,
// what the earlier proxy wrote must be gone, and endpoints must be followed.
//
// From mode iptables back to kube-proxy's mode nftables the way leads over our
// mode nftables: kube-proxy, when it starts, removes all rules that have its
// names before it has written any.
func TestTakeover(t *testing.T) {
	old := legacyPrograms(t)
	s := newShift(t,
		[]turn{
			sluiceNFTables(), sluiceIPTables().kill(), sluiceNFTables(),
			kubeProxyNFTables(), sluiceIPTables(), kubeProxyIPTables(),
		},
		[]turn{
			kubeProxyIPTables(), sluiceNFTables(), kubeProxyNFTables().kill(),
			sluiceNFTables().kill(), kubeProxyIPTables().kill(), sluiceIPTables(),
		},
		[]turn{
			kubeProxyIPTables().legacy(old), sluiceNFTables(), kubeProxyIPTables().legacy(old),
			sluiceIPTables().legacy(""), kubeProxyIPTables().legacy(old).kill(), sluiceNFTables(),
		})
	for s.more() {
		s.change()
	}
}

// TestTakeoverFails lets a proxy come after kube-proxy that cannot write its
// rules: on one node iptables-restore is broken, on another somebody holds the
// lock. What kube-proxy wrote stays in force, and whoever asks is told. Once the
// fault is mended, the proxy takes over by itself.
func TestTakeoverFails(t *testing.T) {
	broken, mend := brokenRestore(t)
	lock, release := heldLock(t)
	s := newShift(t,
		[]turn{kubeProxyIPTables(), sluiceIPTables().with("PATH=" + broken + ":" + os.Getenv("PATH"))},
		[]turn{kubeProxyIPTables().legacy(legacyPrograms(t)), sluiceIPTables().legacy("").with("XTABLES_LOCKFILE=" + lock)})
	s.handOver()
	for i, reason := range []string{"out of order", "xtables lock"} {
		s.awaitLog(s.proxies[i], "Sync failed and is retried", "stay in force", reason)
		s.await("health", "503", health(bed.Nodes[i], "/healthz"))
		s.awaitAnswers(s.loads[i], s.end(1))
		s.checkTraces(bed.Nodes[i], s.turns[i][0])
	}
	mend()
	release()
	s.turnEnds()
	s.settle()
	s.inForce(bed.Nodes[:len(s.turns)]...)
}

// brokenRestore returns a folder whose iptables-restore always fails, until it
// is mended.
func brokenRestore(t *testing.T) (dir string, mend func()) {
	t.Helper()
	dir = t.TempDir()
	programs := []string{"iptables-nft-restore", "ip6tables-nft-restore"}
	for _, name := range programs {
		script := "#!/bin/sh\necho " + name + " is out of order >&2\nexit 4\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir, func() {
		for _, name := range programs {
			program, err := exec.LookPath(name)
			if err == nil {
				err = os.Remove(filepath.Join(dir, name))
			}
			if err == nil {
				err = os.Symlink(program, filepath.Join(dir, name))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// heldLock returns a lock of the legacy variant that is held until it is
// released.
func heldLock(t *testing.T) (path string, release func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(path)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return path, func() {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
	}
}
