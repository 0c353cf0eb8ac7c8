package app

import (
	"net/netip"
	"testing"
	"testing/fstest"

	"sluice/internal/dataplane"
	"sluice/internal/explain"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ct/cttest"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

// TestEndpointOf finds the endpoint of a connection in what the kernel says of sockets and
// of IPVS, in both families.
func TestEndpointOf(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	sockets := fstest.MapFS{
		"tcp": file(head +
			"   0: 0100000A:9C40 0A001EAC:0050 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0\n" + // the client's own, in mode userspace
			"   1: 0A001EAC:0050 0100000A:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0\n" +
			"   2: 0100000A:9C40 0B00000A:1F90 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0\n" +
			"   3: 0100000A:9C41 0C00000A:1F90 02 00000000:00000000 00:00000000 00000000     0        0 3 1 0\n"),
		"tcp6": file(head + "   0: 000000FD000000000000000001000000:9C40 000000FD00000000000000000B000000:1F90 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0\n"),
	}
	taken := fstest.MapFS{"ip_vs_conn": file("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n" +
		"UDP 0A000001 9C40 AC1E000A 0050 0A000063 1F90 UDP             299\n" +
		"TCP 0A000001 9C40 AC1E000A 0050 0A00000B 1F90 ESTABLISHED     899\n" +
		"TCP fd00:0000:0000:0000:0000:0000:0000:0001 9C40 fd00:0000:0000:0000:0000:0000:0000:000a 0050 fd00:0000:0000:0000:0000:0000:0000:000b 1F90 ESTABLISHED     899\n")}
	broken := fstest.MapFS{"tcp": file("x\n 0: 01:x 0B00000A:1F90\n 1: 0100000A:9C40\n"), "ip_vs_conn": file("TCP 0A000001 9C40 x x x x\n")}
	for _, tt := range []struct {
		proc            fstest.MapFS
		client, service string
		want            string
	}{
		{sockets, "10.0.0.1:40000", "172.30.0.10:80", "10.0.0.11:8080"},
		{sockets, "10.0.0.1:40001", "172.30.0.10:80", "10.0.0.12:8080"},
		{sockets, "10.0.0.1:40002", "172.30.0.10:80", "invalid AddrPort"},
		{sockets, "[fd00::1]:40000", "[fd00::a]:80", "[fd00::b]:8080"},
		{taken, "10.0.0.1:40000", "172.30.0.10:80", "10.0.0.11:8080"},
		{taken, "[fd00::1]:40000", "[fd00::a]:80", "[fd00::b]:8080"},
		{taken, "10.0.0.1:40000", "172.30.0.10:81", "invalid AddrPort"},
		{broken, "10.0.0.1:40000", "172.30.0.10:80", "invalid AddrPort"},
		{fstest.MapFS{}, "10.0.0.1:40000", "172.30.0.10:80", "invalid AddrPort"},
	} {
		got, ok := endpointIn(tt.proc, netip.MustParseAddrPort(tt.client), netip.MustParseAddrPort(tt.service))
		if got.String() != tt.want || ok != got.IsValid() {
			t.Errorf("%s to %s: %v, %t; want %s", tt.client, tt.service, got, ok, tt.want)
		}
	}
}

// TestFlowOfAPort checks that a client's connection from one port is listed, whatever
// else the client has open, and even if it has ended.
func TestFlowOfAPort(t *testing.T) {
	client, service := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("172.30.0.10:80")
	k := cttest.NewFake()
	for i := range 3 * maxFlowsListed {
		orig := ct.Tuple{Src: netip.AddrPortFrom(client, uint16(40000+i)), Dst: service}
		reply := ct.Tuple{Src: netip.MustParseAddrPort("10.0.0.11:8080"), Dst: orig.Src}
		k.Add(ct.Flow{Protocol: uint8(proxy.TCP), Orig: orig, Reply: reply, Translated: true, Closed: i%2 == 1})
	}
	s := &ProxyServer{mode: dataplane.Mode{Flows: func() (ct.Interface, error) { return k, nil }}}
	for port, want := range map[uint16]string{0: "10.0.0.1:40000", 40040: "10.0.0.1:40040", 40041: "10.0.0.1:40041"} {
		a := &explain.Answer{Explanation: &statusapi.Explanation{}, Packet: proxy.Packet{Protocol: proxy.TCP, Src: client, Dst: service}}
		s.addOpenFlows(t.Context(), a, port)
		if f := a.Flows; len(f.Items) != maxFlowsListed || f.Items[0].Client != want || f.Unknown != "" {
			t.Errorf("port %d: %d of %d flows, %s, the first %+v; want %s", port, len(f.Items), f.Total, f.Unknown, f.Items[0], want)
		}
	}
}
