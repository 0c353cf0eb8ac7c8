package nftables

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// host is a network namespace with two endpoints on local addresses.
type host struct {
	*testing.T
	one, two netip.AddrPort
}

// newHost returns a host with two endpoints that reply with their own address, and a route to
// Services.
func newHost(t *testing.T) *host {
	t.Helper()
	lab.Namespace(t)
	h := &host{T: t, one: netip.MustParseAddrPort("10.0.0.1:8080"), two: netip.MustParseAddrPort("10.0.0.2:8080")}
	lab.Loopback(t, h.one.Addr(), h.two.Addr())
	h.run("ip route add 172.16.0.0/16 dev lo")
	for _, a := range []netip.AddrPort{h.one, h.two} {
		ln, err := net.Listen("tcp", a.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(c, a)
				c.Close()
			}
		}()
	}
	return h
}

func (h *host) run(line string) {
	h.Helper()
	if out, err := exec.CommandContext(h.Context(), "sh", "-ec", line).CombinedOutput(); err != nil {
		h.Fatalf("%s: %v: %s", line, err, out)
	}
}

// expect sends to a Service and expects the reply of an endpoint; no reply if want is invalid.
func (h *host) expect(sp *proxy.ServicePort, want netip.AddrPort, when string) {
	h.Helper()
	patience := 5 * time.Second
	if !want.IsValid() {
		patience = 200 * time.Millisecond
	}
	got := make([]byte, len("10.0.0.1:8080"))
	c, err := net.DialTimeout("tcp", sp.Frontends[0].Addr.String(), patience)
	if err == nil {
		defer c.Close()
		_, err = c.Read(got)
	}
	switch {
	case want.IsValid() && (err != nil || string(got) != want.String()):
		h.Errorf("%s: %v answers %q, error %v; want %v", when, sp.Key.Name, got, err, want)
	case !want.IsValid() && err == nil:
		h.Errorf("%s: %v is answered by %q, want no answer", when, sp.Key.Name, got)
	}
}

// TestLeave checks that the rules work after Leave until another proxy translates a Service's
// address, and do nothing then, whatever that proxy knows about other Services. A new Sync
// makes them work again.
func TestLeave(t *testing.T) {
	h := newHost(t)
	d, _ := openKernel(t)
	s := plainState(0)
	web, gone := plainRow(1, 1, 0), plainRow(2, 1, 0)
	mute := plainRow(3, 1, 0)
	mute.Key.Protocol = proxy.UDP
	for _, sp := range []*proxy.ServicePort{web, gone, mute} {
		sp.Cluster[0].Addr = h.one
		s.Rows[sp.Key] = sp
	}
	if err := d.Leave(t.Context()); err != nil {
		t.Errorf("leave before anything was written: %v", err)
	}
	step := func(do func() error, when string) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	sync := func() error { return proxytest.Sync(t.Context(), d, s) }
	leave := func() error { return d.Leave(t.Context()) }
	step(sync, "sync")
	inForce := dump(t, d.conn, d)
	for _, round := range []string{"first", "second"} {
		step(leave, "leave")
		h.expect(web, h.one, round+" time alone")
		h.expect(gone, h.one, round+" time alone")
		h.sendTwice(mute)
		h.expect(gone, h.one, round+" time alone, after somebody asked twice in vain")

		h.run(`nft add table ip other '{ chain out { type nat hook output priority -100; ip daddr ` +
			web.Frontends[0].Addr.Addr().String() + ` tcp dport 80 dnat to ` + h.two.String() + `; }; }'`)
		h.expect(web, h.two, round+" time beside another proxy")
		h.expect(gone, netip.AddrPort{}, round+" time beside another proxy, which has forgotten it")
		h.run("nft delete table ip other")
		h.expect(gone, netip.AddrPort{}, round+" time after another proxy")

		step(sync, "sync")
		h.expect(web, h.one, round+" time back")
		h.expect(gone, h.one, round+" time back")
		if now := dump(t, d.conn, d); now != inForce {
			t.Errorf("the rules differ after a restart:\n%s\nbefore:\n%s", now, inForce)
		}
	}
}

// TestLeaveIgnoresOtherPrograms checks that the rules keep working after Leave beside rules
// that translate traffic to addresses of no Service, and that connection marks of other
// programs stay.
func TestLeaveIgnoresOtherPrograms(t *testing.T) {
	h := newHost(t)
	h.run(`nft add table ip strangers '{
		chain proxied { type nat hook output priority -100; tcp dport 25 redirect to :3128; }
		chain marks { type filter hook output priority -150; tcp dport 8080 ct state new ct mark set 0x4000; }
		chain seen { type filter hook postrouting priority 50; tcp dport 8080 ct state new ct mark 0x4000 counter; }
	}'`)
	d, _ := openKernel(t)
	s := plainState(0)
	web := plainRow(1, 1, 0)
	web.Cluster[0].Addr = h.one
	s.Rows[web.Key] = web
	proxytest.MustSync(t, d, s)
	if err := d.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(web.Frontends[0].Addr.Addr(), 25), h.two} {
		if c, err := net.DialTimeout("tcp", to.String(), 5*time.Second); err == nil {
			c.Close()
		}
	}
	h.expect(web, h.one, "after somebody asked for a port that is redirected")
	h.run("nft list chain ip strangers seen | grep -q 'packets 1 '")
}

// sendTwice sends two datagrams of one flow to an endpoint that does not reply: the second one
// still belongs to a new flow, but is translated already.
func (h *host) sendTwice(sp *proxy.ServicePort) {
	h.Helper()
	deaf, err := net.ListenPacket("udp", h.one.String())
	if err != nil {
		h.Fatal(err)
	}
	defer deaf.Close()
	if err := deaf.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		h.Fatal(err)
	}
	c, err := net.Dial("udp", sp.Frontends[0].Addr.String())
	if err != nil {
		h.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		if _, err := c.Write([]byte("anyone?")); err != nil {
			h.Fatal(err)
		}
		if _, _, err := deaf.ReadFrom(make([]byte, 16)); err != nil {
			h.Fatal(err)
		}
	}
}

// TestLeaveKeepsTheGuard checks that loopback addresses stay guarded after Leave, because
// route_localnet stays enabled.
func TestLeaveKeepsTheGuard(t *testing.T) {
	d := Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14})
	s := plainState(1)
	s.Node.LocalhostNodePorts = true
	proxytest.MustSync(t, d, s)
	if err := d.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := d.conn.List(t.Context(), d.tables[0].Table)
	if err != nil {
		t.Fatal(err)
	}
	guard := d.tables[0].chain("guard", d.tables[0].guardRules(localnet.Guard{InForce: true})...).listed()
	if got := l.Chains["firewall-prerouting"]; len(got) < 2 || !slices.Equal(got[:2], guard) {
		t.Errorf("the first rules are %q, want the guard", got)
	}
}
