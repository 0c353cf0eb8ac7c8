package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice/internal/proxy"
	"sluice/test/cluster/process"
	"sluice/test/cluster/testbed"
)

// turn is a proxy whose turn it is on a node.
type turn struct {
	name   string
	proxy  testbed.Proxy
	traces string // what there is of proxies when it is in force
	table  string // which of it gives way to another proxy after its end; none: nothing does
	killed bool   // it ends without a chance to say a word
}

// kill makes the proxy end without a chance to say a word.
func (t turn) kill() turn {
	t.killed = true
	return t
}

// with changes the proxy's environment.
func (t turn) with(env string) turn {
	t.proxy.Env = append(t.proxy.Env, env)
	return t
}

// legacy makes the proxy one that writes the legacy variant of iptables. One
// that asks the host for its variant has no need of a folder of programs.
func (t turn) legacy(programs string) turn {
	t.name += "(legacy)"
	t.traces = "iptables-legacy"
	if programs == "" {
		return t
	}
	return t.with("PATH=" + programs + ":" + os.Getenv("PATH"))
}

// Addresses that the world sends to whichever node it likes.
const (
	fickleIPv4, fickleIPv6 = "198.51.100.9", "2001:db8:e::9"
	localIPv4, localIPv6   = "198.51.100.10", "2001:db8:e::10"
)

// lastingPort is that of connections that stay open, beside servicePort.
const lastingPort = 81

// shift is turns on all nodes, all at the same time, with traffic. On each node
// some connections are open all the time, and new ones keep coming.
type shift struct {
	*scene
	turns   [][]turn // by node
	at      int      // whose turn it is
	started []time.Time
	loads   []*load
	lasting []*v1.Service // for connections that stay open
	first   []*held       // open since the first turn, by node
	holds   []*held       // open since the turn before, by node

	followed []*v1.Service  // whose endpoint changes with each turn
	ends     []*testbed.Pod // take turns as that endpoint
	fickle   *v1.Service    // has an endpoint at every other turn
}

// newShift starts the first turn of each node, and traffic on all.
func newShift(t *testing.T, turns ...[]turn) *shift {
	t.Helper()
	s := &shift{scene: newBareScene(t), turns: turns, started: make([]time.Time, len(turns))}
	s.wipeAfter()
	for i := range turns {
		s.proxies = append(s.proxies, s.start(i))
	}
	pods := s.pods("web")
	s.ends = pods[1:]
	s.lasting = s.newLasting(pods[:2]...)
	web := s.service("web", balanced)
	s.giveVIPs(web, balancerIPv4, balancerIPv6)
	s.addLocal()
	sticky := s.service("sticky", func(svc *v1.Service) { svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP })
	s.followed = []*v1.Service{web, sticky}
	s.fickle = s.service("fickle", func(svc *v1.Service) {
		svc.Spec.Type = v1.ServiceTypeNodePort
		svc.Spec.ExternalIPs = []string{fickleIPv4, fickleIPv6}
	})
	s.turnEnds()
	for i, n := range bed.Nodes[:len(turns)] {
		streams := s.passing(i, web, sticky)
		s.awaitFirst(streams...)
		s.loads = append(s.loads, s.startLoad(2*beat, streams...))
		s.first = append(s.first, s.holdAll(i, 2))
		s.checkTraces(n, turns[i][0])
	}
	s.holds = make([]*held, len(turns))
	return s
}

// holdAll opens connections on a node by every way to the lasting Services, and
// uses them.
func (s *shift) holdAll(i, each int) *held {
	s.Helper()
	var streams []stream
	for _, svc := range s.lasting {
		streams = append(streams, s.ways(i, svc)...)
	}
	for _, vip := range []string{localIPv4, localIPv6} {
		to := netip.AddrPortFrom(netip.MustParseAddr(vip), lastingPort)
		streams = append(streams, stream{proxy.TCP, outside(bed.Nodes[i]), to})
	}
	var conns []connection
	for _, one := range streams {
		for range each {
			conns = append(conns, s.connect(one))
		}
		if one.protocol == proxy.UDP && one.from.free {
			conns = append(conns, s.askFrom(one))
		}
	}
	return s.hold(2*beat, conns...)
}

// start starts the proxy of a node whose turn it is.
func (s *shift) start(i int) *process.Process {
	s.Helper()
	s.started[i] = time.Now()
	return s.startProxy(bed.Nodes[i], s.turns[i][s.at].proxy)
}

// newLasting makes Services for connections that stay open, one for each protocol.
func (s *shift) newLasting(pods ...*testbed.Pod) []*v1.Service {
	s.Helper()
	echo := s.service("echo", func(svc *v1.Service) {
		svc.Spec.Type = v1.ServiceTypeNodePort
		svc.Spec.Ports = svc.Spec.Ports[:1]
		svc.Spec.Ports[0].TargetPort = intstr.FromInt32(echoPort)
	})
	talk := s.service("talk", func(svc *v1.Service) {
		svc.Spec.Type = v1.ServiceTypeNodePort
		svc.Spec.Ports = svc.Spec.Ports[1:]
	})
	for _, p := range pods {
		s.echo(p)
	}
	s.publish(echo, ready(pods...)...)
	s.publish(talk, ready(pods...)...)
	return []*v1.Service{echo, talk}
}

// addLocal makes a Service of the type LoadBalancer with the external policy Local
// and one pod on each node, which stays.
func (s *shift) addLocal() {
	s.Helper()
	svc := s.service("local", func(svc *v1.Service) {
		svc.Spec.Type = v1.ServiceTypeLoadBalancer
		svc.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{
			Name: "lasting", Protocol: v1.ProtocolTCP, Port: lastingPort, TargetPort: intstr.FromInt32(echoPort),
		})
	})
	s.giveVIPs(svc, localIPv4, localIPv6)
	pods := s.pods("local")
	for _, p := range pods {
		s.echo(p)
	}
	s.publish(svc, ready(pods...)...)
}

// ways returns the ways by which a node leads to a Service with one port: from
// a pod, from itself and from outside, in both families.
func (s *shift) ways(i int, svc *v1.Service) []stream {
	n := bed.Nodes[i]
	protocol := proxy.TCP
	if svc.Spec.Ports[0].Protocol == v1.ProtocolUDP {
		protocol = proxy.UDP
	}
	out := []stream{{protocol, onNode(n), clusterIPs(svc)[0]}}
	for family, to := range clusterIPs(svc) {
		out = append(out, stream{protocol, s.clients[i], to}, stream{protocol, outside(n), nodePorts(n, svc)[family]})
	}
	return out
}

// passing returns where new connections go on a node.
func (s *shift) passing(i int, web, sticky *v1.Service) []stream {
	n := bed.Nodes[i]
	udp := netip.AddrPortFrom(n.Addrs[1], uint16(web.Spec.Ports[1].NodePort))
	return append(s.ways(i, web),
		stream{proxy.TCP, outside(n), onPort(externalIPv4)[0]},
		stream{proxy.TCP, outside(n), onPort(balancerIPv6)[0]},
		stream{proxy.TCP, outside(n), onPort(localIPv4)[0]},
		stream{proxy.UDP, outside(n), onPort(localIPv6)[0]},
		stream{proxy.TCP, s.clients[i], clusterIPs(sticky)[0]},
		stream{proxy.UDP, s.clients[i], clusterIPs(web)[0]},
		stream{proxy.UDP, outside(n), udp})
}

// end is the pod that takes new connections now, or after other turns.
func (s *shift) end(turns int) *testbed.Pod { return s.ends[(s.at+turns)%len(s.ends)] }

// turnEnds makes another pod take all new connections. The one before goes on
// answering and is not forgotten: who asks it by UDP at the moment of the change
// would be cut off, whoever the proxy is.
func (s *shift) turnEnds() {
	s.Helper()
	for _, svc := range s.followed {
		s.publish(svc, testbed.Member{Pod: s.end(0)}, testbed.Member{Pod: s.end(1), Phase: testbed.Terminating})
	}
	if s.at%2 == 0 {
		s.publish(s.fickle)
	} else {
		s.publish(s.fickle, ready(s.end(0))...)
	}
}

// expectFickle expects that what was said of a Service at the last turn is
// forgotten: that it has no endpoint, or that it has one.
func (s *shift) expectFickle(i int, n *testbed.Node) {
	s.Helper()
	want := "refused"
	if s.at%2 == 1 {
		want = s.end(0).Name
		// kube-proxy's mode iptables has no opinion of its own when there is none.
		s.expect(probe{onNode(n), onPort(fickleIPv4, fickleIPv6)[i%2], want})
	}
	s.expect(probe{s.clients[i], clusterIPs(s.fickle)[i%2], want}, probe{outside(n), nodePorts(n, s.fickle)[(i+1)%2], want})
}

// more reports whether there is another turn.
func (s *shift) more() bool { return s.at+1 < len(s.turns[0]) }

// change opens connections that the proxies of now lead, stops all proxies, starts
// those whose turn is next and waits until each is in force and alone.
func (s *shift) change() {
	s.Helper()
	for i := range s.turns {
		s.holds[i] = s.holdAll(i, 1)
	}
	s.handOver()
	s.turnEnds()
	s.settle()
}

// handOver stops all proxies and starts those whose turn is next. One that carries
// connections itself is only asked to stop: it does when they have ended.
func (s *shift) handOver() {
	s.Helper()
	for i, p := range s.proxies {
		s.checkSockets(i)
		if was := s.turns[i][s.at]; was.killed {
			p.Kill()
		} else if was.proxy.Mode == testbed.Userspace {
			if err := p.RequestStop(); err != nil {
				s.Fatal(err)
			}
		} else if err := p.Stop(); err != nil {
			s.Fatal(err)
		}
	}
	s.at++
	for i := range s.turns {
		s.proxies[i] = s.start(i)
	}
}

// checkSockets sees to it that in mode ebpf connections go by their sockets.
func (s *shift) checkSockets(i int) {
	s.Helper()
	if s.turns[i][s.at].proxy.Mode != testbed.EBPF {
		return
	}
	_, text, err := get(bed.Nodes[i], "http://127.0.0.1:10249/metrics")
	if err != nil {
		s.Fatal(err)
	}
	found := regexp.MustCompile(`ebpf_translated_total\{protocol="(\w+)"\} (\d+)`).FindAllStringSubmatch(text, -1)
	for _, one := range found {
		s.Logf("%s: %s flows by their sockets: %s", bed.Nodes[i].Name, one[1], one[2])
	}
	if len(found) != 2 || found[0][2] == "0" || found[1][2] == "0" {
		s.Error("not every protocol went by its sockets")
	}
}

// settle waits until the proxies of this turn are in force, alone or beside
// rules that have given way, and says how it went.
func (s *shift) settle() {
	s.Helper()
	for i, n := range bed.Nodes[:len(s.turns)] {
		now := s.turns[i][s.at]
		if s.goBack(i, n) {
			now.traces += ", " + s.turns[i][s.at-1].table
		}
		s.awaitAnswers(s.loads[i], s.end(0))
		s.awaitQuiet(s.loads[i], s.end(1))
		s.tell(i)
		s.checkTraces(n, now)
		s.expectFickle(i, n)
	}
}

// goBack does what docs/replace-kube-proxy.md says for the way back to
// kube-proxy, in its very words where they are commands for a node. It reports
// whether rules of ours stay, which have given way: there nothing is to be done.
func (s *shift) goBack(i int, n *testbed.Node) (stay bool) {
	s.Helper()
	was, is := s.turns[i][s.at-1], s.turns[i][s.at]
	if was.proxy.KubeProxy || !is.proxy.KubeProxy {
		return false
	}
	if was.table != "" {
		if was.killed {
			onHost(s.T, n, "bash", "-c", wayBack(s.T))
		}
		return !was.killed
	}
	s.awaitQuiet(s.loads[i], s.end(1))
	for _, program := range []string{"iptables", "ip6tables"} {
		unused := "iptables -F KUBE-CLUSTER-IPS; iptables -X KUBE-CLUSTER-IPS"
		onHost(s.T, n, "env", append(is.proxy.Env, "sh", "-c", "set -e; "+strings.ReplaceAll(unused, "iptables", program))...)
	}
	return false
}

// wayBack returns the commands that the document gives for a node.
func wayBack(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "replace-kube-proxy.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Go back")
	_, commands, _ := strings.Cut(section, "bash -c '")
	commands, _, found := strings.Cut(commands, "'\ndone")
	if !found {
		t.Fatal("the document has no commands for the way back")
	}
	return commands
}

// TestWayBackWithoutIPv6 takes the rules of a killed daemon away beside a
// kube-proxy that serves IPv4 only: the commands must not wait for ever for what
// never comes. Half a minute of waiting is cut short.
func TestWayBackWithoutIPv6(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"ip6tables", "ip6tables-save", "ip6tables-restore"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := newBareScene(t)
	s.wipeAfter()
	n := bed.Nodes[0]
	svc := s.service("web")
	s.publish(svc, ready(s.pods("web")[0])...)
	ours := s.startProxy(n, testbed.Proxy{})
	s.expect(probe{s.clients[0], clusterIPs(svc)[0], "web-1"})
	ours.Kill()
	one := kubeProxyIPTables().with("PATH=" + dir + ":" + os.Getenv("PATH"))
	s.awaitLog(s.startProxy(n, one.proxy), "single-stack mode")
	commands := strings.Replace(wayBack(t), "{1..30}", "{1..3}", 1)
	if commands == wayBack(t) {
		t.Fatal("the commands do not wait for half a minute")
	}
	s.await("rules on "+n.Name, one.traces, func() string {
		onHost(t, n, "bash", "-c", commands)
		return s.traces(n)
	})
	s.expect(probe{s.clients[0], clusterIPs(svc)[0], "web-1"})
}

// checkTraces waits until there are a proxy's rules on a node, and nobody
// else's.
func (s *shift) checkTraces(n *testbed.Node, t turn) {
	s.Helper()
	want := slices.Sorted(strings.SplitSeq(t.traces, ", "))
	s.await("rules on "+n.Name, strings.Join(want, ", "), func() string { return s.traces(n) })
}

// tell prints how a node fared in the last change, and ends the test if
// something went wrong. Connections of the turn before end now, and with the last
// turn all: what led them may stay for as long as they do.
func (s *shift) tell(i int) {
	s.Helper()
	if !s.more() {
		s.first[i].stop()
	}
	intact, fared := s.first[i].take()
	if h := s.holds[i]; h != nil {
		h.stop()
		more, and := h.take()
		intact, fared = intact+more, fared.and(and)
		s.holds[i] = nil
	}
	t := s.loads[i].take()
	after := s.loads[i].of(s.end(1)).last.Sub(s.started[i])
	s.Logf("%s: %s -> %s: open connections %d held %d broken (%d rounds); new connections %d ok %d failed; "+
		"UDP %d ok %d lost; in force after %.1f s; longest pause %d ms open, %d ms new (%s)",
		bed.Nodes[i].Name, s.turns[i][s.at-1].name, s.turns[i][s.at].name,
		intact, len(fared.broken), fared.rounds, t.answered[proxy.TCP], t.failed[proxy.TCP],
		t.answered[proxy.UDP], t.failed[proxy.UDP], after.Seconds(),
		fared.longest.Milliseconds(), t.slowest.Milliseconds(), t.slow)
	s.blame(fared.broken)
	s.blame(t.failures)
	if s.Failed() {
		s.FailNow() // the logs are those of this change
	}
}
