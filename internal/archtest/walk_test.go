package archtest

import (
	"context"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/engine"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	from "sluice/internal/source"
)

// maxHops is the number of named hops of an event from a source to the kernel and to the observers.
const maxHops = 8

// walk records the path of one event by the call stacks at the points where it can be observed.
type walk struct {
	nft.Interface
	on    bool
	calls []string // functions of this module, as "package.Function", in order
}

// here records the functions of this module on the call stack, outermost first.
func (w *walk) here() {
	if !w.on {
		return
	}
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var stack []string
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		name, ours := strings.CutPrefix(f.Function, "sluice/internal/")
		if !ours || strings.HasPrefix(name, "archtest.") || strings.Contains(f.File, "_test.go") {
			continue
		}
		stack = append(stack, plainName(name))
	}
	slices.Reverse(stack)
	w.calls = append(w.calls, stack...)
}

// plainName turns "dataplane/differ.(*Differ[...]).Apply" into "differ.Apply".
func plainName(name string) string {
	name = regexp.MustCompile(`\[[^\]]*\]|\(\*\w+\)\.|\.func\d+(\.\d+)*|-fm$`).ReplaceAllString(regexp.MustCompile(`\(\*(\w+)\[.*\]\)`).ReplaceAllString(name, "(*$1)"), "")
	return name[strings.LastIndex(name, "/")+1:]
}

func (w *walk) Commit(ctx context.Context, b *nft.Batch) error {
	w.here()
	return w.Interface.Commit(ctx, b)
}

// The walk is also the engine's observer.
func (w *walk) Queued()           {}
func (w *walk) ServiceSeen(int)   {}
func (w *walk) NodeSeen(*v1.Node) {}
func (w *walk) Repairing()        {}
func (w *walk) EndpointSliceSeen(_, _ *discoveryv1.EndpointSlice, _ int) {
	w.here()
}

func (w *walk) Began(step *proxy.Delta) {
	w.here()
	if w.on && len(step.Upserts) == 1 {
		w.calls = append(w.calls, "resolve.Update") // it found the changed row
	}
}
func (w *walk) Done(context.Context, engine.Result) { w.here() }

// TestWalkOfOneEvent replaces an endpoint and checks that the event takes the hops that
// ARCHITECTURE.md names, in that order, and no more than maxHops.
func TestWalkOfOneEvent(t *testing.T) {
	text, err := os.ReadFile(root + "/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## The life of one event\n")
	section, _, _ = strings.Cut(section, "\n## ")
	hops := regexp.MustCompile("(?m)^\\d+\\. `(\\w+\\.\\w+)`").FindAllStringSubmatch(section, -1)
	if len(hops) < 5 || len(hops) > maxHops {
		t.Fatalf("ARCHITECTURE.md names %d hops; want some, and at most %d", len(hops), maxHops)
	}
	calls := walked(t)
	t.Logf("calls on the way: %s", strings.Join(slices.Compact(slices.Clone(calls)), ", "))
	rest := calls
	for _, h := range hops {
		i := slices.Index(rest, h[1])
		if i < 0 {
			t.Fatalf("the event does not come to %s, or not in this order: %s", h[1], strings.Join(calls, ", "))
		}
		rest = rest[i+1:]
	}
	var packages []string
	for _, c := range calls {
		pkg, _, _ := strings.Cut(c, ".")
		if !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
		if !slices.ContainsFunc(hops, func(h []string) bool { return strings.HasPrefix(h[1], pkg+".") }) {
			t.Errorf("the event passes package %s, which no hop names", pkg)
		}
	}
	if len(packages) > maxHops {
		t.Errorf("the event passes packages %v", packages)
	}
}

// walked replaces one endpoint of one Service and returns the calls on its path.
func walked(t *testing.T) []string {
	w := &walk{Interface: nfttest.NewFake()}
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.Settings{
			Dataplane: nftables.Alone.New(w, mode.Settings{MasqueradeBit: 14}),
			Resolver:  resolve.New(resolve.Settings{NodeName: "here"}), Observer: w,
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.SyncLoop(ctx) }()
		slices := from.NewEndpointSliceConfig(e)
		services := from.NewServiceConfig(e)
		services.Set(theService())
		slices.Set(theSlice("10.0.0.1"))
		services.Synced()
		slices.Synced()
		from.NewNodeConfig("here", e).Synced()
		synctest.Wait()
		w.on = true
		slices.Set(theSlice("10.0.0.2"))
		synctest.Wait()
		w.on = false
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
	return w.calls
}

func theService() *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: v1.ServiceSpec{
			ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
}

func theSlice(address string) *discoveryv1.EndpointSlice {
	port, name, tcp := int32(8080), "", v1.ProtocolTCP
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}
}
