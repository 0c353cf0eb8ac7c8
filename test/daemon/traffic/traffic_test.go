package traffic

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// followTime is how long the daemon may take until what it was told is in force.
const followTime = 5 * time.Second

var (
	nodeAddr  = netip.MustParseAddr("192.168.0.2")
	guestAddr = netip.MustParseAddr("192.168.0.77") // comes to the node and goes
	outsider  = netip.MustParseAddr("203.0.113.2")
)

// changes are what an operator and the cluster's controllers do to a Service.
var changes = []struct {
	name    string
	pods    int
	change  func(*web)
	streams func(*web) []*stream // beside those that every change has
}{
	{"rolling update of 50 endpoints", 50, (*web).rollOut, nil},
	{"scaled to zero and back", 4, (*web).scaleToZero, nil},
	{"externalTrafficPolicy to Local and back", 4, (*web).externalPolicy, nil},
	{"internalTrafficPolicy to Local and back", 4, (*web).internalPolicy, nil},
	{"sessionAffinity on and off", 4, (*web).affinity, nil},
	{"trafficDistribution on and off", 4, (*web).distribution, nil},
	{"targetPort changed and back", 4, (*web).targetPort, nil},
	{"port changed and back", 4, (*web).port, func(w *web) []*stream { return w.toPorts(testbed.ClusterIP.Addr(), w.pod, 1000) }},
	{"nodePort changed and back", 4, (*web).nodePort, func(w *web) []*stream { return w.toPorts(nodeAddr, w.outside, 31000) }},
	{"port renamed", 4, (*web).rename, nil},
	{"daemon replaced by the former version and back", 4, (*web).upgrade, (*web).findFormer},
	{"address of the node comes and goes", 4, (*web).nodeAddress, func(w *web) []*stream { return w.toPorts(guestAddr, w.outside, 30000) }},
}

// TestTrafficUnderChange changes a Service while requests of all kinds keep coming: short connections,
// lasting ones, and datagrams from new ports, from one port and without an answer; from a
// pod, the node and outside. No request may fail, and none may be answered by a pod that
// was not usable while it ran.
func TestTrafficUnderChange(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			if mode != "ebpf" { // for which the process is in a cgroup of its own, with all that it starts
				t.Parallel()
			}
			for _, c := range changes {
				t.Run(c.name, func(t *testing.T) {
					w := newWeb(t, mode, c.pods)
					streams := w.streams()
					if c.streams != nil {
						streams = append(streams, c.streams(w)...)
					}
					stop := startStreams(t, streams)
					w.hold()
					c.change(w)
					w.hold()
					stop()
					w.report(c.name, streams)
				})
			}
		})
	}
}

// web is a Service with pods, and what the daemon was told of it.
type web struct {
	*testbed.Testbed
	mode         string
	hosts        *podHosts
	pod, outside origin
	node         origin
	daemon       *testbed.Daemon
	fence        uint16
	now          moment // what is told next
	history      history
	serviceFile  string
	former       string // the program that an upgrade begins with
	slicesFile   string
}

// newWeb starts a daemon, and returns when it serves so many pods.
func newWeb(t *testing.T, mode string, pods int) *web {
	t.Helper()
	w := &web{Testbed: testbed.NewFor(t, mode), mode: mode}
	w.pod = origin{name: "a pod", host: w.Client}
	w.node = origin{name: "the node", host: w.Lab.Node()}
	w.outside = origin{name: "outside", host: w.Lab.Outside(), src: outsider}
	var err error
	if w.hosts, err = newPodHosts(w.Lab); err != nil {
		t.Fatal(err)
	}
	w.now = moment{service: newService(mode), targets: map[string]uint16{}, local: lab.Config{}.LocalAddrs()}
	for _, p := range w.now.service.Spec.Ports {
		w.now.targets[p.Name] = uint16(p.TargetPort.IntVal)
	}
	w.now.members = w.newMembers(pods, ready)
	w.daemon = w.Start(nil)
	w.publish(nil)
	return w
}

// newService has a port for each kind of traffic, by ClusterIP and NodePort.
func newService(mode string) *v1.Service {
	s := &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ClusterIP: testbed.ClusterIP.Addr().String()},
	}
	add := func(name string, protocol v1.Protocol, port, target int32) {
		p := v1.ServicePort{Name: name, Protocol: protocol, Port: port, NodePort: 30000 + port}
		p.TargetPort.IntVal = target
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	add("http", v1.ProtocolTCP, 80, answerPort)
	add("kept", v1.ProtocolTCP, 81, keptPort)
	add("dns", v1.ProtocolUDP, 53, answerPort)
	add("log", v1.ProtocolUDP, 54, oneWayPort)
	if mode != "userspace" { // which has no SCTP
		add("sig", v1.ProtocolSCTP, 82, answerPort)
	}
	return s
}

// newMembers starts pods.
func (w *web) newMembers(n int, in phase) (members []member) {
	w.T.Helper()
	for range n {
		p, err := w.hosts.add()
		if err != nil {
			w.T.Fatal(err)
		}
		w.T.Cleanup(func() {
			if err := p.close(); err != nil {
				w.T.Error(err)
			}
		})
		members = append(members, member{p, in})
	}
	return members
}

// streams are those that every change has.
func (w *web) streams() []*stream {
	vip, node := testbed.ClusterIP.Addr(), nodeAddr
	at := netip.AddrPortFrom
	out := []*stream{
		{kind: fresh, protocol: proxy.TCP, from: w.pod, to: at(vip, 80)},
		{kind: fresh, protocol: proxy.TCP, from: w.node, to: at(vip, 80)},
		{kind: fresh, protocol: proxy.TCP, from: w.outside, to: at(node, 30080)},
		{kind: kept, protocol: proxy.TCP, from: w.pod, to: at(vip, 81)},
		{kind: kept, protocol: proxy.TCP, from: w.node, to: at(vip, 81)},
		{kind: kept, protocol: proxy.TCP, from: w.outside, to: at(node, 30081)},
		{kind: fresh, protocol: proxy.UDP, from: w.pod, to: at(vip, 53)},
		{kind: fresh, protocol: proxy.UDP, from: w.outside, to: at(node, 30053)},
		{kind: held, protocol: proxy.UDP, from: w.pod, to: at(vip, 53)},
		{kind: held, protocol: proxy.UDP, from: w.node, to: at(vip, 53), loose: true},
		{kind: held, protocol: proxy.UDP, from: w.outside, to: at(node, 30053)},
		{kind: oneWay, protocol: proxy.UDP, from: w.pod, to: at(vip, 54)},
		{kind: oneWay, protocol: proxy.UDP, from: w.pod, to: at(vip, 54), loose: true},
		{kind: oneWay, protocol: proxy.UDP, from: w.outside, to: at(node, 30054)},
	}
	if w.mode != "userspace" {
		out = append(out,
			&stream{kind: fresh, protocol: proxy.SCTP, from: w.pod, to: at(vip, 82)},
			&stream{kind: fresh, protocol: proxy.SCTP, from: w.outside, to: at(node, 30082)})
	}
	return out
}

// toPorts are streams to the same ports at another address, or that much higher.
func (w *web) toPorts(addr netip.Addr, from origin, base uint16) []*stream {
	return []*stream{
		{kind: fresh, protocol: proxy.TCP, from: from, to: netip.AddrPortFrom(addr, base+80)},
		{kind: fresh, protocol: proxy.UDP, from: from, to: netip.AddrPortFrom(addr, base+53)},
		{kind: held, protocol: proxy.UDP, from: from, to: netip.AddrPortFrom(addr, base+53)},
		{kind: oneWay, protocol: proxy.UDP, from: from, to: netip.AddrPortFrom(addr, base+54)},
	}
}

// hold lets requests come for a while.
func (w *web) hold() { testbed.Pause(w.T, traffic.Scaled(150*time.Millisecond)) }

// publish changes what there is, tells it to the daemon and waits until that is in force.
func (w *web) publish(change func(*moment)) {
	w.T.Helper()
	w.now.service, w.now.members = w.now.service.DeepCopy(), slices.Clone(w.now.members)
	w.now.local, w.now.targets = slices.Clone(w.now.local), maps.Clone(w.now.targets)
	if w.now.at = time.Now(); change != nil {
		change(&w.now)
	}
	m := w.now
	w.history = append(w.history, &m)
	w.writeChanged("service.yaml", &w.serviceFile, m.service)
	w.writeChanged("slice.yaml", &w.slicesFile, m.slice())
	w.passFence() // one reading of the folder may have begun before the last file was written
	w.passFence()
	m.inForce = time.Now()
	if took := m.inForce.Sub(m.at); len(w.history) > 1 && took > traffic.Scaled(followTime) {
		w.T.Errorf("in force after %v", took)
	}
}

// passFence changes a Service that nobody asks, and waits until that and all else is in force.
func (w *web) passFence() {
	w.T.Helper()
	w.fence = w.fence%60000 + 1
	at := netip.AddrPortFrom(testbed.SecondIP.Addr(), w.fence)
	w.Write("fence.yaml", testbed.Service("fence", at))
	testbed.Eventually(w.T, "what was written", func() bool {
		c := statusapi.AtSocket(w.Socket)
		var s statusapi.Service
		var n statusapi.Node
		err := c.Get(w.T.Context(), statusapi.ServicesPath+"/default/fence", nil, &s)
		if err == nil {
			err = c.Get(w.T.Context(), statusapi.NodePath, nil, &n)
		}
		return err == nil && len(s.Rows) == 1 && len(s.Rows[0].Frontends) == 1 && s.Rows[0].Frontends[0].Address == at.String() && n.InForce()
	})
}

// writeChanged writes an object if it is not what was written last.
func (w *web) writeChanged(name string, last *string, object any) {
	w.T.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		w.T.Fatal(err)
	}
	if string(text) != *last {
		*last = string(text)
		w.Write(name, *last)
	}
}

// slice is the Service's EndpointSlice as its controller writes it.
func (m *moment) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, name := range slices.Sorted(maps.Keys(m.targets)) {
		for _, p := range newService("").Spec.Ports {
			if strings.TrimSuffix(name, renamed) == p.Name {
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &p.Protocol, Port: ptr.To(int32(m.targets[name]))})
			}
		}
	}
	for _, x := range m.members {
		node := map[bool]string{true: "test-node", false: "other-node"}[x.here]
		e := discoveryv1.Endpoint{Addresses: []string{x.addr.String()}, NodeName: &node}
		e.Conditions.Ready, e.Conditions.Serving = ptr.To(x.phase == ready), ptr.To(x.phase == ready || x.phase == terminating)
		e.Conditions.Terminating = ptr.To(x.phase >= terminating)
		if m.service.Spec.TrafficDistribution != nil && x.phase == ready {
			e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// report judges all requests and says what came of them.
func (w *web) report(change string, streams []*stream) {
	w.T.Helper()
	res := reliability.Result{Fault: change, Mode: w.mode, Tried: 1}
	associations := reliability.Result{Fault: "a Service changes in all these ways, SCTP alone", Mode: w.mode, Tried: 1}
	for _, m := range w.history[1:] {
		res.Repairs = append(res.Repairs, m.inForce.Sub(m.at))
	}
	var closed, cut, refused, lost int
	for _, st := range streams {
		w.receive(st)
		res.Requests, closed, cut = res.Requests+len(st.requests), closed+st.closed, cut+st.cut
		var faults []string
		before := res
		var last netip.AddrPort // who has the flow
		for _, r := range st.requests {
			switch j := w.history.judge(st, r, last); {
			case j == underWay:
				lost++
			case j == right && r.Fate != traffic.Answered:
				refused++
			case j == right:
			case r.Fate == traffic.Answered:
				res.Misdirected++
				faults = append(faults, w.tell(r))
			default:
				res.Failed++
				faults = append(faults, w.tell(r))
			}
			if st.kind != fresh && r.Fate == traffic.Answered {
				last = r.By
			}
		}
		if st.protocol == proxy.SCTP {
			associations.Requests += len(st.requests)
			associations.Failed += res.Failed - before.Failed
			associations.Misdirected += res.Misdirected - before.Misdirected
		}
		if len(faults) > 0 {
			w.T.Errorf("%v: %d of %d requests went wrong:\n%s", st, len(faults), len(st.requests), strings.Join(faults[:min(len(faults), 5)], "\n"))
		}
	}
	res.Note = note(closed, cut, refused, lost)
	reliability.Record(w.T, res)
	if w.mode != "userspace" && hasSCTP() {
		reliability.Record(w.T, associations)
	}
}

// hasSCTP reports whether the kernel has sockets of SCTP: else first packets stand for associations.
func hasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	return err == nil && unix.Close(fd) == nil
}

// note says what came to an end by nature.
func note(closed, cut, refused, lost int) string {
	var notes []string
	for _, n := range []struct {
		n    int
		what string
	}{
		{closed, "connections that their pod closed in order"},
		{cut, "connected UDP sockets whose endpoint was gone, and that connected again"},
		{refused, "requests refused or dropped, rightly, while the Service had nobody or was not there"},
		{lost, "requests or answers that were under way when the flow to an endpoint that serves no more was ended"},
	} {
		if n.n > 0 {
			notes = append(notes, fmt.Sprintf("%d %s", n.n, n.what))
		}
	}
	return strings.Join(notes, "; ")
}

// receive finds out which datagrams of a stream arrived. The last one may be under way.
func (w *web) receive(st *stream) {
	w.T.Helper()
	if st.kind != oneWay {
		return
	}
	arrived := func(r request) (arrival, bool) { return w.hosts.arrivals.of(datagram{st.id, r.number}) }
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	last := st.requests[len(st.requests)-1]
	for end := last.begun.Add(traffic.Scaled(patience)); time.Now().Before(end); <-tick.C {
		if _, ok := arrived(last); ok {
			break
		}
	}
	for i, r := range st.requests {
		if got, ok := arrived(r); ok {
			st.requests[i].Seen, st.requests[i].ended = traffic.Seen{Fate: traffic.Answered, Answer: traffic.Answer{By: got.by}}, got.at
		}
	}
}

// tell says what became of a request, and when by the history.
func (w *web) tell(r request) string {
	last := 0
	for i, m := range w.history {
		if !m.at.After(r.begun) {
			last = i
		}
	}
	m := w.history[last]
	return fmt.Sprintf("  %v; begun %v after change %d, which was in force after %v; took %v", r.Seen, r.begun.Sub(m.at).Round(time.Millisecond),
		last, m.inForce.Sub(m.at).Round(time.Millisecond), r.ended.Sub(r.begun).Round(time.Millisecond))
}
