package dataplane

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// TestCleanupRemovesOnlyKubeProxy compares the whole host before kube-proxy wrote its rules
// and after Cleanup, in both variants of iptables. The nft variant needs no programs.
func TestCleanupRemovesOnlyKubeProxy(t *testing.T) {
	tests := []struct {
		name  string
		load  []func(*testing.T, ipt.Variant)
		lines int // how many lines Cleanup returns: tables and sets, without the link of mode ipvs
	}{
		{"nothing", nil, 0},
		{"iptables", []func(*testing.T, ipt.Variant){loadIPTables}, 6},
		{"ipvs", []func(*testing.T, ipt.Variant){loadIPVS}, 4 + 34},
		{"nftables", []func(*testing.T, ipt.Variant){loadNFTables}, 2},
		{"all", []func(*testing.T, ipt.Variant){loadIPTables, loadNFTables, loadIPVS}, 6 + 2 + 34},
	}
	for _, v := range ipt.Variants() {
		for _, tt := range tests {
			t.Run(v.String()+" "+tt.name, func(t *testing.T) {
				lab.Namespace(t)
				loadForeign(t, v)
				before := snapshot(t)
				for _, load := range tt.load {
					load(t, v)
				}
				loaded := snapshot(t)
				if (loaded == before) != (tt.load == nil) {
					t.Fatalf("loading changed the host: %t (-before +after):\n%s", loaded != before, cmp.Diff(strings.Split(before, "\n"), strings.Split(loaded, "\n")))
				}

				path := os.Getenv("PATH")
				if v == ipt.NFT {
					t.Setenv("PATH", t.TempDir())
				}
				removed, err := Cleanup(t.Context(), Settings{}, nil)
				t.Setenv("PATH", path)
				if err != nil {
					t.Errorf("cleanup: %v", err)
				}
				want := tt.lines
				if strings.Contains(loaded, "kube-ipvs0") {
					want++
				}
				if len(removed) != want {
					t.Errorf("removed %d lines, want %d:\n%s", len(removed), want, strings.Join(removed, "\n"))
				}
				wantSame(t, "Cleanup", before, snapshot(t))
				wantNothingToDo(t)
				wantSame(t, "the second Cleanup", before, snapshot(t))
			})
		}
	}
}

func wantSame(t *testing.T, what, before, after string) {
	t.Helper()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(after, "\n")); diff != "" {
		t.Errorf("%s changed the host (-before +after):\n%s", what, diff)
	}
}

func wantNothingToDo(t *testing.T) {
	t.Helper()
	removed, err := Cleanup(t.Context(), Settings{}, nil)
	if removed != nil || err != nil {
		t.Errorf("a second cleanup removed %q, error %v; want nothing", removed, err)
	}
}

// TestCleanupKeepsWhatOthersUse has chains of other programs that jump to kube-proxy's, and
// another program's rule that uses a set of kube-proxy.
func TestCleanupKeepsWhatOthersUse(t *testing.T) {
	for _, v := range ipt.Variants() {
		t.Run(v.String(), func(t *testing.T) {
			lab.Namespace(t)
			loadForeign(t, v)
			before := snapshot(t)
			loadIPTables(t, v)
			loadIPVS(t, v)
			const uses = `*nat
:CNI-DN-0123456789abcdef - [0:0]
:MINE - [0:0]
-A CNI-HOSTPORT-DNAT -j CNI-DN-0123456789abcdef
-A CNI-DN-0123456789abcdef -s 10.244.0.2/32 -j KUBE-MARK-MASQ
-A MINE -g KUBE-SVL-TLDZHNCMVVVJGXPB
COMMIT
*filter
-A DOCKER-USER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
COMMIT
`
			restore(t, ipt.IPv4, v, uses)

			_, err := Cleanup(t.Context(), Settings{}, nil)
			if !errors.Is(err, proxy.ErrInUse) {
				t.Errorf("error %v, want ErrInUse", err)
			}
			var got []string
			for line := range strings.Lines(err.Error()) {
				got = append(got, strings.TrimSpace(line))
			}
			in := "from table nat of " + ipt.Name(ipt.IPv4, v) + ": in use by rules other than kube-proxy's: chain "
			want := []string{
				"remove chain KUBE-MARK-MASQ " + in + "CNI-DN-0123456789abcdef jumps to it",
				"remove chain KUBE-SEP-2LJIAYV4ZQ5TRGQ6 " + in + "KUBE-SVL-TLDZHNCMVVVJGXPB jumps to it",
				"remove chain KUBE-SVL-TLDZHNCMVVVJGXPB " + in + "MINE jumps to it",
				"remove IP set KUBE-CLUSTER-IP: in use by rules other than kube-proxy's",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what stays (-want +got):\n%s", diff)
			}
			now := snapshot(t)
			for _, rule := range []string{
				"-A KUBE-SVL-TLDZHNCMVVVJGXPB -m comment --comment \"shop/web:http\" -j KUBE-SEP-2LJIAYV4ZQ5TRGQ6",
				"-A KUBE-SEP-2LJIAYV4ZQ5TRGQ6 -s 10.244.0.2/32", "-A KUBE-MARK-MASQ -j MARK", "-A MINE -g KUBE-SVL-TLDZHNCMVVVJGXPB",
				"-A CNI-DN-0123456789abcdef -s 10.244.0.2/32 -j KUBE-MARK-MASQ", "-A DOCKER-USER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN",
			} {
				if !strings.Contains(now, rule) {
					t.Errorf("%q is gone", rule)
				}
			}
			for _, name := range []string{"KUBE-POSTROUTING ", "KUBE-SVC-TLDZHNCMVVVJGXPB", "KUBE-NODEPORTS -", "KUBE-LOOP-BACK"} {
				if strings.Contains(strings.ReplaceAll(now, `"-j KUBE-NODEPORTS "`, ""), name) {
					t.Errorf("%s is still there", name)
				}
			}

			// Once nothing uses them, the rest is removed.
			restore(t, ipt.IPv4, v, "*nat\n-F MINE\n-X MINE\n-F CNI-HOSTPORT-DNAT\n-F CNI-DN-0123456789abcdef\n-X CNI-DN-0123456789abcdef\nCOMMIT\n"+
				"*filter\n-D DOCKER-USER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN\nCOMMIT\n")
			removed, err := Cleanup(t.Context(), Settings{}, nil)
			if err != nil || len(removed) != 2 {
				t.Errorf("cleanup removed %q, error %v; want the chains of nat and a set", removed, err)
			}
			wantSame(t, "Cleanup", before, snapshot(t))
		})
	}
}

// TestMissingPrograms cleans up with an empty PATH.
func TestMissingPrograms(t *testing.T) {
	tests := []struct {
		name  string
		load  func(*testing.T)
		want  string // the error, or empty
		stays string // part of what is left; empty if nothing, "all" if everything is
	}{
		{"nothing to clean", func(*testing.T) {}, "", ""},
		{"nothing of iptables to clean", func(t *testing.T) { loadNFTables(t, 0) }, "", ""},
		{
			"nothing of kube-proxy's in nf_tables",
			func(t *testing.T) { restore(t, ipt.IPv4, ipt.NFT, "*nat\n:DOCKER - [0:0]\nCOMMIT\n") },
			"", "all",
		},
		{
			"chains in nf_tables",
			func(t *testing.T) {
				loadNFTables(t, 0)
				restore(t, ipt.IPv6, ipt.NFT, "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
			},
			"", "table ip6 nat {\n}", // it may be another program's
		},
		{
			"nothing of kube-proxy's in legacy tables",
			func(t *testing.T) {
				restore(t, ipt.IPv4, ipt.Legacy, "*nat\n:DOCKER - [0:0]\nCOMMIT\n*raw\nCOMMIT\n")
			},
			"", "all",
		},
		{
			"chains in legacy tables",
			func(t *testing.T) {
				restore(t, ipt.IPv4, ipt.Legacy, "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n*filter\n:DOCKER - [0:0]\nCOMMIT\n")
			},
			"find kube-proxy's chains in nat of iptables-legacy: find programs iptables-legacy-save and iptables-legacy-restore: not installed",
			"all",
		},
		{
			"legacy tables kube-proxy does not use",
			func(t *testing.T) {
				restore(t, ipt.IPv4, ipt.Legacy, "*raw\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
			},
			"", "all",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lab.Namespace(t)
			empty := snapshot(t)
			tt.load(t)
			loaded := snapshot(t)
			path := os.Getenv("PATH")
			t.Setenv("PATH", t.TempDir())
			_, err := Cleanup(t.Context(), Settings{}, nil)
			t.Setenv("PATH", path)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case tt.want != "" && (err == nil || err.Error() != tt.want || !errors.Is(err, ipt.ErrMissing)):
				t.Errorf("error %v, want %q", err, tt.want)
			}
			switch now := snapshot(t); {
			case tt.stays == "":
				wantSame(t, "Cleanup", empty, now)
			case tt.stays == "all":
				wantSame(t, "Cleanup", loaded, now)
			case !strings.Contains(now, tt.stays) || strings.Contains(now, "table ip kube-proxy"):
				t.Errorf("want %q left and no table of kube-proxy:\n%s", tt.stays, now)
			}
		})
	}
}

// TestTablesIPTablesCannotRead cleans up tables that also have what only the nft program can
// write. It stays; if it refers to a chain of kube-proxy's, so does that.
func TestTablesIPTablesCannotRead(t *testing.T) {
	lab.Namespace(t)
	command(t, `table ip nat {
	chain MINE { meta mark set ct mark map { 1 : 2 }; }
	chain PREROUTING { type nat hook prerouting priority dstnat; tcp dport vmap { 80 : jump MINE, 81 : drop }; }
}`, "nft", "-f", "-")
	before := snapshot(t)
	command(t, `table ip nat {
	chain KUBE-SERVICES { jump KUBE-NODEPORTS; }
	chain KUBE-NODEPORTS { }
	chain PREROUTING { type nat hook prerouting priority dstnat; counter jump KUBE-SERVICES; }
}`, "nft", "-f", "-")
	removed, err := Cleanup(t.Context(), Settings{}, nil)
	want := []string{"table nat of iptables-nft: 1 jump; chains KUBE-NODEPORTS, KUBE-SERVICES"}
	if diff := cmp.Diff(want, removed); diff != "" || err != nil {
		t.Errorf("error %v, removed (-want +got):\n%s", err, diff)
	}
	wantSame(t, "Cleanup", before, snapshot(t))
	command(t, "table ip nat { chain KUBE-SERVICES { }\n chain MINE { udp dport vmap { 53 : jump KUBE-SERVICES }; }\n}", "nft", "-f", "-")
	before = snapshot(t)
	if removed, err := Cleanup(t.Context(), Settings{}, nil); len(removed) > 0 || !errors.Is(err, proxy.ErrInUse) {
		t.Errorf("removed %q, error %v; want a chain in use", removed, err)
	}
	wantSame(t, "Cleanup", before, snapshot(t))
}
