package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/statusapi"
)

// daemon has prepared answers, and records requests.
type daemon struct {
	answers map[string]any // by path
	asked   []string
}

func (d *daemon) Get(_ context.Context, path string, query url.Values, to any) error {
	d.asked = append(d.asked, path+"?"+query.Encode())
	answer, ok := d.answers[path+"?"+query.Encode()]
	if !ok {
		answer, ok = d.answers[path]
	}
	if f, is := answer.(func() any); is {
		answer = f()
	}
	if !ok {
		return &statusapi.ResponseError{Code: 404, Message: "no " + path}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func node(change func(*statusapi.Node)) statusapi.Node {
	n := statusapi.Node{
		Name: "node-1", Mode: "nftables", Families: []string{"IPv4", "IPv6"}, Started: now.Add(-50 * time.Hour), Now: now,
		Health: statusapi.Health{Healthy: true}, Sync: statusapi.Sync{Done: true, Last: new(now.Add(-2 * time.Second)), Seconds: 0.00312},
		Counts:   statusapi.Counts{Services: 2, Ports: 1234, Endpoints: 12345678},
		Tracking: &statusapi.Tracking{Entries: 1000, Limit: 262144},
	}
	if change != nil {
		change(&n)
	}
	return n
}

func list(more int) statusapi.ServiceList {
	return statusapi.ServiceList{Total: 2 + more, Items: []statusapi.ServiceSummary{
		{Namespace: "shop", Name: "cart", Address: "10.96.0.1", Ports: []string{"80/TCP"}, Used: 2, Endpoints: 3, State: statusapi.InForce, Since: now.Add(-90 * time.Second)},
		{Namespace: "shop", Name: "idle", Address: "10.96.0.2", Ports: []string{"80:30080/TCP"}, State: statusapi.StateNoEndpoints, Since: now, Problems: 1},
	}}
}

func TestStatusText(t *testing.T) {
	d := &daemon{answers: map[string]any{
		statusapi.NodePath:     node(nil),
		statusapi.ServicesPath: list(0),
		statusapi.ProblemsPath: statusapi.ProblemList{Total: 1, Items: []statusapi.Problem{
			{Object: "Service shop/idle", Field: "spec.externalIPs[0]", Reason: "\x1b[2Jnot an\naddress"},
		}},
	}}
	var b strings.Builder
	r, err := Status(t.Context(), &b, d, StatusOptions{})
	if err != nil || !r.Troubled() {
		t.Errorf("error %v, troubled %t", err, r.Troubled())
	}
	want := `node-1: mode nftables, IPv4 and IPv6, up 2d2h, healthy
2 Services, 1,234 ports, 12,345,678 endpoints
All in force (last sync 2s ago, took 3.12ms)
Connection tracking: 1,000 of 262,144 entries (0%)

1 PROBLEM:
  Service shop/idle: spec.externalIPs[0]: ` + "\ufffd" + `[2Jnot an address

NAMESPACE   NAME   ADDRESS     PORTS          ENDPOINTS   STATE                    SINCE
shop        cart   10.96.0.1   80/TCP         2/3         InForce                  90s
shop        idle   10.96.0.2   80:30080/TCP   0/0         NoEndpoints, 1 problem   0s
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("status mismatch (-want +got):\n%s", diff)
	}
}

// TestWideStatus checks the columns of traffic: what is not known is a dash.
func TestWideStatus(t *testing.T) {
	s := list(0)
	s.Items[0].Traffic = &statusapi.Traffic{
		Connections: new(uint64(1234)), Active: new(uint64(5)), Failed: new(uint64(6)), Refused: map[string]uint64{"NoEndpoints": 7, "SourceRange": 8},
	}
	d := &daemon{answers: map[string]any{statusapi.NodePath: node(nil), statusapi.ServicesPath: s, statusapi.ProblemsPath: statusapi.ProblemList{}}}
	var b strings.Builder
	if _, err := Status(t.Context(), &b, d, StatusOptions{Output: "wide"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"EXTERNAL   CONNECTIONS   ACTIVE   FAILED   REFUSED   BYTES   REASON\n",
		"90s     -          1,234         5        6        15        -       -\n", "0s      -          -             -        -        -         -       -\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("want %q in\n%s", want, b.String())
		}
	}
}

// TestDoubts checks what the first lines say of doubts, and that --wait fails for those
// that are errors.
func TestDoubts(t *testing.T) {
	lost := statusapi.Doubt{
		Kind: "RulesChanged", Severity: statusapi.DoubtError, Reason: "a table is gone", Since: now.Add(-12 * time.Second),
		Next: "everything is compared", NextAt: new(now.Add(18 * time.Second)),
	}
	full := statusapi.Doubt{Kind: "ConntrackNearlyFull", Severity: statusapi.DoubtWarning, Object: "\x1b[2J", Reason: "95% full", Since: now.Add(-3 * time.Hour)}
	for _, tt := range []struct {
		doubts  []statusapi.Doubt
		want    []string
		inForce bool
	}{
		{nil, []string{"All in force (last sync 2s ago"}, true},
		{[]statusapi.Doubt{full}, []string{"All in force, but 1 doubt (last sync", "\n1 DOUBT:\n  ConntrackNearlyFull \ufffd[2J, since 3h: 95% full\n"}, true},
		{[]statusapi.Doubt{lost, full}, []string{
			"IN DOUBT: a table is gone (last sync", "\n2 DOUBTS:\n  RulesChanged, since 12s: a table is gone. Next: everything is compared, in 18s\n",
		}, false},
	} {
		n := node(func(n *statusapi.Node) { n.Doubts = tt.doubts })
		d := &daemon{answers: map[string]any{statusapi.NodePath: n, statusapi.ServicesPath: list(0), statusapi.ProblemsPath: statusapi.ProblemList{}}}
		var b strings.Builder
		if _, err := Status(t.Context(), &b, d, StatusOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, want := range tt.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("want %q in\n%s", want, b.String())
			}
		}
		if err := Wait(t.Context(), d, 0); (err == nil) != tt.inForce {
			t.Errorf("%+v: --wait returns %v", tt.doubts, err)
		}
	}
}

// TestStatusOfMany checks that by default only Services that need attention are shown,
// if there are many.
func TestStatusOfMany(t *testing.T) {
	d := &daemon{answers: map[string]any{
		statusapi.NodePath:     node(func(n *statusapi.Node) { n.Counts.Services = 30000 }),
		statusapi.ServicesPath: list(0), statusapi.ProblemsPath: statusapi.ProblemList{},
	}}
	var b strings.Builder
	if _, err := Status(t.Context(), &b, d, StatusOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := d.asked[2]; got != "/v1/services?limit=50&problems=true&sort=name" {
		t.Errorf("asked %s", got)
	}
	if want := "29,998 Services not shown; -A shows all"; !strings.Contains(b.String(), want) {
		t.Errorf("%s\nwant %q", b.String(), want)
	}
}

// full is a file on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestFullDisk checks that errors of the writer are returned.
func TestFullDisk(t *testing.T) {
	idle := statusapi.Service{ServiceSummary: list(0).Items[1], Rows: []statusapi.Port{{Name: "http"}}}
	d := &daemon{answers: map[string]any{
		statusapi.NodePath: node(nil), statusapi.ProblemsPath: statusapi.ProblemList{}, statusapi.ServicesPath: statusapi.ServiceList{},
		statusapi.ServicesPath + "?limit=500&sort=name": list(0), "/v1/services/shop/idle": idle,
	}}
	for _, o := range []StatusOptions{{}, {Output: "wide"}, {Output: "name"}, {Output: "json"}, {Services: []string{"shop/idle"}}} {
		if _, err := Status(t.Context(), full{}, d, o); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := Nodes(full{}, nodes(1, nil), StatusOptions{Output: "name"}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("nodes: %v", err)
	}
	if err := CompareServices(full{}, services(func(s *statusapi.Service) { s.Rows = nil }), StatusOptions{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a Service on nodes: %v", err)
	}
}

// TestEmptyLists checks that empty lists are not null in JSON.
func TestEmptyLists(t *testing.T) {
	d := &daemon{answers: map[string]any{
		statusapi.NodePath: node(nil), statusapi.ProblemsPath: statusapi.ProblemList{}, statusapi.ServicesPath: statusapi.ServiceList{},
		"/v1/services/shop/cart": statusapi.Service{},
	}}
	for _, o := range []StatusOptions{{Output: "json"}, {Output: "json", Services: []string{"shop/cart"}}} {
		var b strings.Builder
		if _, err := Status(t.Context(), &b, d, o); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"problems": []`, `"services": [`} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%+v lacks %s:\n%s", o, want, b.String())
			}
		}
	}
}

// TestProblemsOfNamespace checks that problems of other namespaces do not count.
func TestProblemsOfNamespace(t *testing.T) {
	d := &daemon{answers: map[string]any{
		statusapi.NodePath: node(nil), statusapi.ServicesPath: statusapi.ServiceList{},
		statusapi.ProblemsPath:                            statusapi.ProblemList{Total: 1, Items: []statusapi.Problem{{Object: "Service shop/idle"}}},
		statusapi.ProblemsPath + "?namespace=kube-system": statusapi.ProblemList{},
	}}
	var b strings.Builder
	if err := ShowStatus(t.Context(), &b, d, StatusOptions{Problems: true, Namespace: "kube-system"}); err != nil || strings.Contains(b.String(), "shop") {
		t.Errorf("error %v, shows\n%s", err, b.String())
	}
}

// TestProblemsOfSome checks that with a namespace, or with names, --problems finds what is
// wrong with these Services, or with the node, and not what is wrong with others.
func TestProblemsOfSome(t *testing.T) {
	fine := list(0).Items[0]
	refused := fine
	refused.State = statusapi.Refused
	for _, tt := range []struct {
		what  string
		node  func(*statusapi.Node)
		of    statusapi.ServiceSummary
		finds bool
	}{
		{"nothing", nil, fine, false},
		{"others are refused and pending", func(n *statusapi.Node) { n.Counts.Refused, n.Counts.Pending = 1, 2 }, fine, false},
		{"it is refused", func(n *statusapi.Node) { n.Counts.Refused = 1 }, refused, true},
		{"a sync failed", func(n *statusapi.Node) { n.Sync.Error = "no buffer space" }, fine, true},
		{"the node is not healthy", func(n *statusapi.Node) { n.Health.Healthy = false }, fine, true},
	} {
		d := &daemon{answers: map[string]any{
			statusapi.NodePath: node(tt.node), statusapi.ProblemsPath: statusapi.ProblemList{},
			"/v1/services/shop/cart": statusapi.Service{ServiceSummary: tt.of},
			"/v1/services?limit=500&namespace=shop&problems=true&sort=name": statusapi.ServiceList{Items: []statusapi.ServiceSummary{tt.of}},
		}}
		for _, o := range []StatusOptions{{Problems: true, Namespace: "shop"}, {Problems: true, Services: []string{"shop/cart"}}} {
			err := ShowStatus(t.Context(), io.Discard, d, o)
			if e, found := errors.AsType[*ExitError](err); found != tt.finds || found && e.Code != ExitFinding || !found && err != nil {
				t.Errorf("%s, %+v: %v", tt.what, o, err)
			}
		}
	}
}

func TestStatusGoesThroughPages(t *testing.T) {
	first, second := list(2), list(2)
	first.Continue = "2"
	second.Items[0].Name = "last"
	d := &daemon{answers: map[string]any{
		statusapi.NodePath: node(nil), statusapi.ProblemsPath: statusapi.ProblemList{},
		"/v1/services?limit=500&namespace=shop&sort=-used":            first,
		"/v1/services?continue=2&limit=500&namespace=shop&sort=-used": second,
	}}
	var b strings.Builder
	if _, err := Status(t.Context(), &b, d, StatusOptions{Namespace: "shop", SortBy: "-used", Output: "name"}); err != nil {
		t.Fatal(err)
	}
	if want := "shop/cart\nshop/idle\nshop/last\nshop/idle\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestStatusOfOneService(t *testing.T) {
	s := statusapi.Service{ServiceSummary: list(0).Items[0], Rows: []statusapi.Port{{
		Name: "http", Protocol: "TCP", Family: "IPv4", Internal: "Cluster", External: "Local", Affinity: 10800, Total: 7,
		Frontends: []statusapi.Frontend{{Kind: "ClusterIP", Address: "10.96.0.1:80"}, {Kind: "ExternalIP", Address: "192.0.2.1:80", LostTo: "shop/other"}},
		Status:    statusapi.Status{State: statusapi.Refused, Reason: "the set is full", Pending: &now},
		Endpoints: []statusapi.Endpoint{
			{Address: "10.244.0.1:8080", Used: true, Local: true, Traffic: &statusapi.Traffic{Connections: new(uint64(4321)), Failed: new(uint64(12))}},
			{Address: "10.244.1.2:8080", Reason: "not ready"},
		},
	}}}
	s.Traffic = &statusapi.Traffic{Refused: map[string]uint64{"SourceRange": 2, "NoEndpoints": 1234}}
	d := &daemon{answers: map[string]any{statusapi.NodePath: node(nil), "/v1/services/shop/cart": s}}
	var b strings.Builder
	if _, err := Status(t.Context(), &b, d, StatusOptions{Services: []string{"cart"}, Namespace: "shop"}); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(b.String(), "\n\n")
	want := `Service shop/cart
  Refused packets: NoEndpoints 1,234, SourceRange 2

  Port http TCP IPv4: REFUSED by the kernel: the set is full
    ClusterIP     10.96.0.1:80
    ExternalIP    192.0.2.1:80   lost to Service shop/other
    Policy        internal Cluster, external Local, affinity 3h0m0s
    ENDPOINT          USED   WHERE       CONNECTIONS   FAILED   WHY NOT
    10.244.0.1:8080   yes    this node   4,321         12       -
    10.244.1.2:8080   no     elsewhere   -             -        not ready
    and 5 endpoints more
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Service mismatch (-want +got):\n%s", diff)
	}
	for _, name := range []string{"cart", "/cart", "shop/", "a/b/c"} {
		if _, err := Status(t.Context(), &b, d, StatusOptions{Services: []string{name}}); err == nil || !strings.Contains(err.Error(), "want NAMESPACE/NAME") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestVerdictLine(t *testing.T) {
	for want, change := range map[string]func(*statusapi.Node){
		"NOT SYNCED YET: Services are not known yet": func(n *statusapi.Node) {
			n.Sync = statusapi.Sync{Reason: "Services are not known yet"}
		},
		"SYNC FAILS: no buffer space (last sync 2s ago, took 3.12ms)": func(n *statusapi.Node) { n.Sync.Error = "no buffer space" },
		"2 ports refused by the kernel, 1 pending (last sync 2s ago, took 3.12ms)": func(n *statusapi.Node) {
			n.Counts.Pending, n.Counts.Refused = 1, 2
		},
	} {
		n := node(change)
		if got := verdictLine(&n); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if n.InForce() {
			t.Errorf("%q counts as in force", want)
		}
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := &daemon{answers: map[string]any{statusapi.NodePath: func() any {
			return node(func(n *statusapi.Node) { n.Sync.Done = time.Since(start) > 3*time.Second })
		}}}
		if err := Wait(t.Context(), d, time.Second); err == nil || !strings.Contains(err.Error(), "not everything is in force") {
			t.Errorf("in vain: %v", err)
		}
		if err := Wait(t.Context(), d, time.Minute); err != nil || time.Since(start) > 4*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// away is a daemon that does not answer. Once the context has ended, its error says
// only that.
type away struct{}

func (away) Get(ctx context.Context, _ string, _ url.Values, _ any) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.New("no daemon answers")
}

// TestWaitTimeout checks that what is not in force is a finding, that a daemon that
// does not answer is none, and that the error has the reason, not that the time is up.
func TestWaitTimeout(t *testing.T) {
	pending := &daemon{answers: map[string]any{statusapi.NodePath: node(func(n *statusapi.Node) { n.Counts.Pending = 1 })}}
	for _, tt := range []struct {
		client Client
		code   int
		says   string
	}{
		{pending, ExitFinding, "1 port pending"},
		{away{}, ExitNoAnswer, "no daemon answers"},
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, patience := range []time.Duration{0, time.Second} {
				began := time.Now()
				err := ShowStatus(t.Context(), io.Discard, tt.client, StatusOptions{Wait: &patience})
				if e, ok := errors.AsType[*ExitError](err); !ok || e.Code != tt.code || !strings.Contains(e.Error(), tt.says) || time.Since(began) != patience {
					t.Errorf("%v after %v, want exit code %d and %q after %v", err, time.Since(began), tt.code, tt.says, patience)
				}
			}
		})
	}
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Pointer[statusapi.ChangeList]
		changes.Store(&statusapi.ChangeList{Items: []statusapi.Change{{Number: 7, ServicePort: "shop/old:http/TCP/IPv4"}}})
		d := &daemon{answers: map[string]any{
			statusapi.ChangesPath:    func() any { return changes.Load() },
			"/v1/services/shop/cart": statusapi.Service{ServiceSummary: list(0).Items[0]},
		}}
		ctx, cancel := context.WithCancel(t.Context())
		var b strings.Builder
		ended := make(chan error)
		go func() { ended <- Follow(ctx, &b, d, StatusOptions{}) }()
		synctest.Wait()
		changes.Store(&statusapi.ChangeList{Items: []statusapi.Change{
			{Number: 10, ServicePort: "shop/cart:http/TCP/IPv6"},
			{Number: 9, ServicePort: "shop/cart:http/TCP/IPv4"},
			{Number: 8, ServicePort: "shop/gone/UDP/IPv4"},
			{Number: 7, ServicePort: "shop/old:http/TCP/IPv4"},
		}})
		time.Sleep(10 * watchPeriod)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		lines := strings.Split(b.String(), "\n")
		if len(lines) != 3 || !strings.HasPrefix(lines[0], "shop   gone   -") || !strings.Contains(lines[0], "Removed") || !strings.HasPrefix(lines[1], "shop   cart   10.96.0.1") {
			t.Errorf("%s", fmt.Sprintf("%q", lines))
		}
	})
}
