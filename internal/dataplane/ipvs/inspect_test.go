package ipvs

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/proxy"
)

// TestInspectCost asks for what a row has, however many others there are.
func TestInspectCost(t *testing.T) {
	for _, n := range []int{10, 5_000} {
		h := newHost(t)
		d := h.open(mode.IPVS{})
		var rows []*proxy.ServicePort
		for i := range n {
			rows = append(rows, service(i, proxy.TCP, one, two))
		}
		rows[5].Frontends = append(rows[5].Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:30080")})
		h.sync(d, rows...)
		got, err := d.inspectServers(t.Context(), rows[5].Key)
		// Two virtual servers with two real servers and an address each, and the host's settings.
		if want := 2*(1+2+1) + len(wantedSettings(false)); err != nil || got.Objects != want || len(got.Differences) > 0 {
			t.Errorf("%d Services: %+v, error %v; want %d objects as they are", n, got, err, want)
		}
		if count, _ := h.servers.Reset(); count != (ipvstest.Count{Gets: 2, Lists: 2}) || h.link.Reset().Lists != 0 {
			t.Errorf("%d Services: %+v; want two virtual servers to be asked for, and no list of them", n, count)
		}
	}
}

// TestInspectDiffers names what another process took away, changed or added, and
// nothing else.
func TestInspectDiffers(t *testing.T) {
	sp, beside := service(1, proxy.TCP, one, two), service(2, proxy.TCP, one)
	real := func(verb ipvs.Verb, addr string, weight uint32) ipvs.Op {
		return ipvs.Op{Verb: verb, Server: at(sp), Real: ipvs.Real{Addr: netip.MustParseAddrPort(addr), Weight: weight}}
	}
	for _, tt := range []struct {
		name   string
		op     ipvs.Op
		meddle func(*host) error
		want   []string // of the differences, what should be and what is
	}{
		{name: "a real server is deleted", op: real(ipvs.Delete, two, 0), want: []string{"-a -t 10.96.0.1:80 -r 10.1.0.2:8080 -m -w 1", ""}},
		{name: "a real server gets another weight", op: real(ipvs.Set, one, 7), want: []string{"-r 10.1.0.1:8080 -m -w 1", "-w 7"}},
		{name: "a real server is added", op: real(ipvs.Add, three, 1), want: []string{"", "-a -t 10.96.0.1:80 -r 10.1.0.3:8080 -m -w 1"}},
		{name: "one that gets no connections", op: real(ipvs.Add, three, 0)},
		{
			name: "the virtual server is deleted", op: ipvs.Op{Verb: ipvs.Delete, Server: at(sp)},
			want: []string{"-A -t 10.96.0.1:80 -s rr", "", "-r " + one, "", "-r " + two, ""},
		},
		{
			name: "the virtual server chooses in another way", op: ipvs.Op{Verb: ipvs.Set, Server: at(sp), Settings: ipvs.Settings{Scheduler: "sh"}},
			want: []string{"-A -t 10.96.0.1:80 -s rr", "-A -t 10.96.0.1:80 -s sh"},
		},
		{
			name: "the address is taken", meddle: func(h *host) error { return h.link.Remove(at(sp).Addr.Addr()) },
			want: []string{"ip address add 10.96.0.1/32 dev kube-ipvs0", ""},
		},
		{
			name: "the link is deleted", meddle: func(h *host) error { return h.link.Delete() },
			want: []string{"ip address add 10.96.0.1/32 dev kube-ipvs0", ""},
		},
		{
			name: "a setting is changed", meddle: func(h *host) error { return h.settings.Write("net/ipv4/vs/conntrack", "0") },
			want: []string{"net.ipv4.vs.conntrack = 1", "net.ipv4.vs.conntrack = 0"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			d := h.open(mode.IPVS{})
			h.sync(d, sp, beside)
			were, err := h.link.Find()
			if err != nil {
				t.Fatal(err)
			}
			if tt.meddle != nil {
				if err := tt.meddle(h); err != nil {
					t.Fatal(err)
				}
			} else {
				h.do(tt.op)
			}
			got, err := d.inspectServers(t.Context(), sp.Key)
			if err != nil || 2*len(got.Differences) != len(tt.want) {
				t.Fatalf("%+v, error %v", got, err)
			}
			for _, d := range got.Differences {
				for i, is := range []string{d.Want, d.Have} {
					if want := tt.want[i]; is != want && (want == "" || !strings.Contains(is, want)) {
						t.Errorf("%+v; want %q", d, tt.want)
					}
				}
				tt.want = tt.want[2:]
			}
			if got, err := d.inspectServers(t.Context(), beside.Key); tt.op.Server.Addr.IsValid() && (err != nil || len(got.Differences) > 0) {
				t.Errorf("a row beside it: %+v, error %v", got, err)
			}
			if found := verified(t, d, sp); len(found) != len(got.Differences) {
				t.Errorf("%q is seen, want %d differences", found, len(got.Differences))
			}
			h.sync(d, sp, beside)
			if found := verified(t, d, sp); len(found) > 0 {
				t.Errorf("after a Sync: %q", found)
			}
			if now, err := h.link.Find(); err != nil || !maps.Equal(now, were) {
				t.Errorf("settings are noted to have been %v, error %v; they were %v", now, err, were)
			}
		})
	}
}

// verified returns what differs of a row, and of what all rows stand on.
func verified(t *testing.T, d *Dataplane, sp *proxy.ServicePort) (all []proxy.Difference) {
	t.Helper()
	for _, key := range []proxy.PortKey{{}, sp.Key} {
		found, err := d.Verify(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// TestInspectNeedsSync says nothing about what is not known.
func TestInspectNeedsSync(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	if _, err := d.inspectServers(t.Context(), service(1, proxy.TCP, one).Key); err == nil {
		t.Error("nothing was written, and nothing differs")
	}
}
