package ipvs

import (
	"strings"
	"testing"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// TestRenderDiff tells what of a host differs, and changes nothing of it.
func TestRenderDiff(t *testing.T) {
	h := newHost(t)
	web, dns := service(1, proxy.TCP, one, two), service(2, proxy.UDP, one)
	diff := func() string {
		t.Helper()
		h.servers.Reset()
		h.link.Reset()
		var out strings.Builder
		r := &mode.Rendering{Want: stateOf(web, dns), Diff: true, Out: &out}
		if _, err := newDataplane(h.kernel().dry(), mode.Settings{}).render(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if count, done := h.servers.Reset(); count.Ops != 0 || h.link.Reset().Calls != 0 {
			t.Errorf("something was done: %v", done)
		}
		return out.String()
	}
	before := diff()
	if _, err := h.link.Find(); err == nil || !strings.Contains(before, "+ net.ipv4.vs.conntrack = 1\n") ||
		!strings.Contains(before, "+ ip address add 10.96.0.1/32 dev kube-ipvs0\n") || !strings.Contains(before, "+ -a -t 10.96.0.1:80 -r 10.1.0.2:8080 -m -w 1\n") {
		t.Errorf("a host without anything, error %v:\n%s", err, before)
	}
	h.sync(h.open(mode.IPVS{}), web, dns)
	if out := diff(); out != "" {
		t.Errorf("a host that is right:\n%s", out)
	}
	gone, wrong := web.Cluster[1].Addr, web.Cluster[0].Addr
	h.do(ipvs.Op{Verb: ipvs.Delete, Server: at(web), Real: ipvs.Real{Addr: gone}})
	h.do(ipvs.Op{Verb: ipvs.Set, Server: at(web), Real: ipvs.Real{Addr: wrong, Weight: 7}})
	h.link.Add(web.Frontends[0].Addr.Addr().Next().Next())
	const want = `# addresses of link kube-ipvs0
- ip address add 10.96.0.3/32 dev kube-ipvs0
# virtual servers and their real servers, as ipvsadm --save prints them
- -a -t 10.96.0.1:80 -r 10.1.0.1:8080 -m -w 7
+ -a -t 10.96.0.1:80 -r 10.1.0.1:8080 -m -w 1
+ -a -t 10.96.0.1:80 -r 10.1.0.2:8080 -m -w 1
`
	if out := diff(); out != want {
		t.Errorf("a host that was changed:\n%s\nwant\n%s", out, want)
	}
}
