package engine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab is an engine on a fake dataplane, running.
type lab struct {
	*Engine
	t        *testing.T
	plane    *fakePlane
	mirror   *mirror
	resolver *resolve.Resolver
	log      func() string
	stop     func()
	ended    chan error
}

func (l *lab) OnServiceAdd(s *v1.Service)    { l.OnServiceUpdate(nil, s) }
func (l *lab) OnServiceDelete(s *v1.Service) { l.OnServiceUpdate(s, nil) }

func (l *lab) OnEndpointSliceAdd(s *discoveryv1.EndpointSlice) { l.OnEndpointSliceUpdate(nil, s) }

func (l *lab) OnEndpointSliceDelete(s *discoveryv1.EndpointSlice) { l.OnEndpointSliceUpdate(s, nil) }

func (l *lab) OnNodeAdd(n *v1.Node)    { l.OnNodeUpdate(nil, n) }
func (l *lab) OnNodeDelete(n *v1.Node) { l.OnNodeUpdate(n, nil) }

func (l *lab) OnServiceCIDRAdd(c *networkingv1.ServiceCIDR)    { l.OnServiceCIDRUpdate(nil, c) }
func (l *lab) OnServiceCIDRDelete(c *networkingv1.ServiceCIDR) { l.OnServiceCIDRUpdate(c, nil) }

// run plays a test in fake time against an engine whose objects have not come.
func run(t *testing.T, change func(*Settings), play func(*lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{
			t:        t,
			plane:    newFakePlane(t),
			mirror:   &mirror{t: t, state: proxy.NewState()},
			resolver: resolve.New(resolve.Settings{NodeName: "here"}),
			ended:    make(chan error, 1),
		}
		s := Settings{Dataplane: l.plane, Resolver: l.resolver, SyncPeriod: time.Hour, Observer: l.mirror}
		if change != nil {
			change(&s)
		}
		l.Engine = New(s)
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
		l.log = func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logger))
		l.stop = stop
		go func() { l.ended <- l.SyncLoop(ctx) }()
		play(l)
		stop()
		if err := <-l.ended; err != nil {
			t.Errorf("SyncLoop: %v", err)
		}
	})
}

// start delivers two Services with one endpoint each, and that it is all.
func (l *lab) start() {
	for i, name := range []string{"api", "web"} {
		l.OnServiceAdd(service(name, i+1))
		l.OnEndpointSliceAdd(endpoints(name, 1))
	}
	l.OnNodeSynced()
	l.OnServiceSynced()
	l.OnServiceCIDRsSynced()
	time.Sleep(time.Second) // Only the last request finds something to do, and runs at once.
	l.OnEndpointSlicesSynced()
}

// started is start, done.
func (l *lab) started() {
	l.t.Helper()
	l.start()
	l.wantCalls("sync 2")
}

// wantCalls waits until all is quiet and compares the calls since the last time.
func (l *lab) wantCalls(want ...string) {
	l.t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, l.plane.takeCalls()); diff != "" {
		l.t.Errorf("calls mismatch (-want +got):\n%s", diff)
	}
}

// wantRows compares what the kernel holds with what is wanted, but for some rows.
func (l *lab) wantRows(but ...proxy.PortKey) {
	l.t.Helper()
	synctest.Wait()
	want := l.resolver.State().String()
	for _, k := range but {
		if row := l.resolver.State().Rows[k]; row != nil {
			want = strings.Replace(want, fmt.Sprintln(row), "", 1)
		}
	}
	var kernel string
	l.plane.with(func(f *fakePlane) { kernel = f.kernel.String() })
	if diff := cmp.Diff(want, kernel); diff != "" {
		l.t.Errorf("kernel mismatch (-want +got):\n%s", diff)
	}
	told := &proxy.State{Rows: l.mirror.rows()}
	if diff := cmp.Diff(kernel, told.String()); diff != "" {
		l.t.Errorf("what observers were told mismatch (-kernel +told):\n%s", diff)
	}
}

// wantLog checks how often a text is in the log.
func (l *lab) wantLog(text string, times int) {
	l.t.Helper()
	if n := strings.Count(l.log(), text); n != times {
		l.t.Errorf("log has %q %d times, want %d:\n%s", text, n, times, l.log())
	}
}

// row returns how the row of a Service stands.
func (l *lab) row(name string) (r RowStatus) {
	l.Look(func(v View) { r = v.Row(key(name)) })
	return r
}

// wantRefused checks which rows are refused, and that syncs go through.
func (l *lab) wantRefused(names ...string) {
	l.t.Helper()
	synctest.Wait()
	var got []string
	for _, r := range l.Refused() {
		got = append(got, r.Key.Name)
		if r.Refused == "" || r.Pending.IsZero() || !r.NextTry.After(time.Now()) {
			l.t.Errorf("%+v is refused; want why, since when and when it is tried again", r)
		}
	}
	if r, _ := l.mirror.outcome(); !slices.Equal(got, names) || r.Err != nil {
		l.t.Errorf("%q are refused, error %v; want %q and none", got, r.Err, names)
	}
}

// key is the row of a Service made by service.
func key(name string) proxy.PortKey {
	n := proxy.ServicePortName{Namespace: "ns", Name: name, Port: "p", Protocol: proxy.TCP}
	return proxy.PortKey{ServicePortName: n, Family: proxy.IPv4}
}

// service returns a Service whose ClusterIP ends in n.
func service(name string, n int) *v1.Service {
	ip := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}).String()
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: v1.ServiceSpec{
			Type:       v1.ServiceTypeClusterIP,
			ClusterIP:  ip,
			ClusterIPs: []string{ip},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports:      []v1.ServicePort{{Name: "p", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
}

// endpoints returns the slice of a Service with ready endpoints, which end in nums.
func endpoints(name string, nums ...int) *discoveryv1.EndpointSlice {
	ready, port, portName, tcp := true, int32(8080), "p", v1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &tcp}},
	}
	for _, n := range nums {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.244.0.%d", n)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}
