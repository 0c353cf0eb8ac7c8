package foreign

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/test/daemon/testbed"
)

const (
	meshMark = 0x539 // of packets that a mesh's proxy sends in a pod
	outbound = "0.0.0.0:15001"
	inbound  = "0.0.0.0:15006"

	// inPod are Istio's rules of ambient mode in a pod: what the pod sends goes to the proxy at 15001,
	// what it receives to that at 15006.
	inPod = `
iptables-nft-restore -n <<RULES
*mangle
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_PRERT -s 169.254.7.127/32 -p tcp -m tcp -j ACCEPT
-A ISTIO_PRERT ! -d 127.0.0.1/32 -i lo -p tcp -j ACCEPT
-A ISTIO_PRERT -p tcp -m tcp --dport 15008 -m mark ! --mark 0x539/0xfff -j TPROXY --on-port 15008 --tproxy-mark 0x111/0xfff
-A ISTIO_PRERT -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff -j TPROXY --on-port 15006 --tproxy-mark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
COMMIT
*nat
:ISTIO_OUTPUT - [0:0]
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -d 169.254.7.127/32 -p tcp -m tcp -j ACCEPT
-A ISTIO_OUTPUT ! -o lo -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
COMMIT
RULES
ip rule add fwmark 0x111/0xfff pref 32764 lookup 100
ip route add local 0.0.0.0/0 dev lo table 100
`

	// onNode are its rules on the node: pods of the mesh see what the node sends as the kubelet's, whose
	// probes they let through.
	onNode = `
ipset create istio-inpod-probes-v4 hash:ip
ipset add istio-inpod-probes-v4 10.0.0.11
PROGRAM -t nat -N ISTIO_POSTRT
PROGRAM -t nat -A POSTROUTING -j ISTIO_POSTRT
PROGRAM -t nat -A ISTIO_POSTRT -p tcp -m owner --socket-exists -m set --match-set istio-inpod-probes-v4 dst -j SNAT --to-source 169.254.7.127
`
)

// kubelet is who sends probes, for a pod of the mesh.
var kubelet = netip.MustParseAddr("169.254.7.127")

// mesh is the proxies of pods, which pass on what the rules in the pods give them.
type mesh struct {
	bed     *testbed.Testbed
	running sync.WaitGroup

	mu    sync.Mutex
	taken map[string][]netip.AddrPort // what connections were to, by listener
}

// enrol has a pod's TCP connections pass a proxy in the pod.
func (m *mesh) enrol(pod *lab.Host) {
	m.bed.T.Helper()
	m.bed.RunIn(pod, "sh", "-ec", inPod)
	for _, at := range []string{outbound, inbound} {
		var socket net.Listener
		c := net.ListenConfig{Control: withOptions(0)}
		if err := pod.Do(func() (err error) {
			socket, err = c.Listen(context.Background(), "tcp4", at)
			return err
		}); err != nil {
			m.bed.T.Fatal(err)
		}
		m.bed.T.Cleanup(func() { _ = socket.Close() })
		m.running.Go(func() {
			for {
				client, err := socket.Accept()
				if err != nil {
					return
				}
				m.running.Go(func() { m.pass(pod, at, client.(*net.TCPConn)) })
			}
		})
	}
}

// pass passes a connection on to where it was to.
func (m *mesh) pass(pod *lab.Host, at string, client *net.TCPConn) {
	defer func() { _ = client.Close() }()
	d := net.Dialer{Control: withOptions(meshMark)}
	to := client.LocalAddr().(*net.TCPAddr).AddrPort() // tproxy leaves it
	if at == outbound {
		to = originalDestination(client)
	} else {
		d.LocalAddr = &net.TCPAddr{IP: client.RemoteAddr().(*net.TCPAddr).IP}
	}
	m.mu.Lock()
	m.taken[at] = append(m.taken[at], to)
	m.mu.Unlock()
	var server net.Conn
	if pod.Do(func() (err error) {
		server, err = d.Dial("tcp4", to.String())
		return err
	}) != nil {
		_ = client.SetLinger(0)
		return
	}
	defer func() { _ = server.Close() }()
	_, _ = io.Copy(client, server) // the servers of the testbed send, and read nothing
}

// withOptions returns a function that lets a socket have addresses of others, and marks it.
func withOptions(mark int) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if refused := c.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1); err == nil && mark != 0 {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark)
			}
		}); refused != nil {
			return refused
		}
		return err
	}
}

// originalDestination returns what a redirected connection was to.
func originalDestination(c *net.TCPConn) (to netip.AddrPort) {
	raw, err := c.SyscallConn()
	if err != nil {
		return to
	}
	_ = raw.Control(func(fd uintptr) {
		if a, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); err == nil { // a sockaddr_in
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.Multiaddr[4:8])), uint16(a.Multiaddr[2])<<8|uint16(a.Multiaddr[3]))
		}
	})
	return to
}

// got returns what connections were to that a listener got, and forgets them.
func (m *mesh) got(at string) []netip.AddrPort {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer delete(m.taken, at)
	return m.taken[at]
}

// TestBesideMesh has pods in Istio's ambient mesh. The proxy in the client's pod gets the Service's
// address, not an endpoint's, whatever the mode; what it sends on reaches an endpoint, by the proxy in
// the endpoint's pod. The node and pods outside of the mesh are served, too. In mode userspace the
// node's rule takes what the daemon sends for the kubelet's.
func TestBesideMesh(t *testing.T) {
	var meshes sync.Map // by test
	beside(t, func(bed *testbed.Testbed, mode string) {
		nodePort(bed)
		m := &mesh{bed: bed, taken: map[string][]netip.AddrPort{}}
		meshes.Store(bed.T, m)
		bed.T.Cleanup(m.running.Wait) // after the listeners are closed
		m.enrol(bed.Client)
		m.enrol(bed.Pods[testbed.PodA])
		program := "iptables-nft"
		if mode == testbed.Legacy {
			program = testbed.Legacy
		}
		bed.Run("sh", "-ec", strings.ReplaceAll(onNode, "PROGRAM", program))
	}, func(bed *testbed.Testbed) {
		found, _ := meshes.Load(bed.T)
		m := found.(*mesh)
		m.got(outbound)
		m.got(inbound)
		client, stranger := testbed.ClientIP, testbed.PodB
		relayed := slices.Contains(bed.Flags, "userspace")
		if relayed {
			client, stranger = kubelet, kubelet
		}
		expect(bed, asks{proxy.TCP, bed.Client, testbed.ClientIP, testbed.ClusterIP.String(), traffic.Answered, testbed.PodA, client})
		out, in := slices.Compact(m.got(outbound)), slices.Compact(m.got(inbound))
		if !slices.Equal(out, []netip.AddrPort{testbed.ClusterIP}) || slices.Contains(in, netip.AddrPortFrom(testbed.PodA, 8080)) == relayed {
			bed.T.Errorf("the proxies got %v and %v, want the Service's address and the endpoint's", out, in)
		}
		expect(
			bed,
			asks{proxy.TCP, bed.Pods[testbed.PodB], testbed.PodB, testbed.ClusterIP.String(), traffic.Answered, testbed.PodA, stranger},
			asks{proxy.TCP, bed.Lab.Node(), nodeIP, testbed.ClusterIP.String(), traffic.Answered, testbed.PodA, netip.Addr{}},
			asks{proxy.TCP, bed.Lab.Node(), nodeIP, "10.0.0.11:8080", traffic.Answered, testbed.PodA, kubelet},
			asks{proxy.TCP, bed.Lab.Outside(), outsider, "192.168.0.2:30080", traffic.Answered, testbed.PodA, netip.Addr{}},
		)
	})
}
