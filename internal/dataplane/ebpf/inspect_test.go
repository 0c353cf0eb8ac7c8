package ebpf_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/proxy"
)

// inspect reads back a row.
func (h *host) inspect(sp *proxy.ServicePort) (out proxy.Inspected) {
	h.Helper()
	err := h.lab.Node().Do(func() (err error) {
		out, err = h.d.Inspect(h.Context(), proxy.Inspection{Row: sp.Key})
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	return out
}

// TestInspectCost checks that inspecting a row reads only the entries of that row.
func TestInspectCost(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	sp := onThisNode(costRow(50, proxy.TCP, 1, 2, 3))
	for _, n := range []int{10, 2_000} {
		rows := []*proxy.ServicePort{sp}
		for i := range n {
			rows = append(rows, costRow(1000+i, proxy.TCP, 1, 2, 3))
		}
		h.must(h.sync(rows...))
		h.d.Reads()
		if got := h.inspect(sp); len(got.Differences) > 0 || got.Unread != "" {
			t.Errorf("%d Services: %+v", n, got)
		}
		// A frontend and three slots of one list.
		if reads := h.d.Reads(); reads != 4 {
			t.Errorf("%d Services: %d entries read; want 4", n, reads)
		}
	}
}

// TestInspectDiffers checks that each entry and program that another process deletes or
// changes is reported, and nothing else.
func TestInspectDiffers(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	sp, beside := row("web", proxy.UDP, web, pods[0], pods[1]), row("dns", proxy.TCP, dns, pods[2])
	sp.Draining = pods[2:]
	sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:30080")})
	h.must(h.sync(sp, beside))
	want := func(when string, words ...string) {
		t.Helper()
		got := h.inspect(sp)
		if len(got.Differences) != len(words) {
			t.Fatalf("%s: %+v; want %q", when, got, words)
		}
		for i, d := range got.Differences {
			if !strings.Contains(d.Object+": "+d.Want+" | "+d.Have, words[i]) {
				t.Errorf("%s: %+v; want %q", when, d, words[i])
			}
		}
	}
	want("as written")
	for name, is := range map[string]string{
		"services": "entry of map services: services ", "endpoints": "entry of map endpoints: endpoints row ",
		"members": "entry of map members: members row ", "node_addrs": "entry of map node_addrs: 192.168.0.",
	} {
		m := h.d.Map(name)
		var key, value []byte
		kept := map[string][]byte{}
		for all := m.Iterate(); all.Next(&key, &value); {
			kept[string(key)] = append([]byte(nil), value...)
		}
		found := 0
		for k, v := range kept {
			h.must(m.Delete([]byte(k)))
			if got := h.inspect(sp); len(got.Differences) > 0 {
				found++
				want("without an entry of "+name, is)
				if got := h.inspect(beside); len(got.Differences) > 0 {
					t.Errorf("without an entry of %s, another row: %+v", name, got)
				}
			}
			changed := append([]byte(nil), v...)
			changed[0]++
			h.must(m.Put([]byte(k), changed))
			if got := h.inspect(sp); name != "members" && len(got.Differences) > 0 {
				want("with another entry of "+name, is)
			}
			h.must(m.Put([]byte(k), v))
		}
		if wanted := map[string]int{"services": 2, "endpoints": 4, "members": 1, "node_addrs": 1}[name]; found != wanted {
			t.Errorf("%d entries of %s belong to the row; want %d", found, name, wanted)
		}
	}
	want("as written again")
	h.must(h.d.ExpireLease())
	want("with an expired lease", "entry of map settings: a valid lease | an expired lease")
	h.must(h.sync(sp, beside))
	h.must(os.Remove(filepath.Join(h.EBPF.BPFRoot, "connect4")))
	want("without a program", "program connect4: attached to cgroup ")
	h.must(h.sync(sp, beside))
	want("attached again")
}
