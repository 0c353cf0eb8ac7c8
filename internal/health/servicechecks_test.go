package health

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/kernel/link"
	"sluice/internal/kernel/link/linktest"
	"sluice/internal/proxy"
)

// checked is ServiceChecks under test.
type checked struct {
	*ServiceChecks
	t       *testing.T
	healthy atomic.Bool
	stop    context.CancelFunc
	ended   chan error
	log     func() string
	state   *proxy.State

	mu       sync.Mutex
	failures []checkFailure
}

// checkFailure is one call of Failed.
type checkFailure struct {
	Check proxy.HealthCheck
	Err   error
}

// newChecks returns checks of a healthy proxy that do not run yet.
func newChecks(t *testing.T, a Addresses) *checked {
	c := &checked{t: t, ended: make(chan error, 1), state: proxy.NewState()}
	c.healthy.Store(true)
	c.ServiceChecks = NewServiceChecks(CheckSettings{Healthy: c.healthy.Load, Addresses: a, Failed: func(check *proxy.HealthCheck, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.failures = append(c.failures, checkFailure{*check, err})
	}})
	return c
}

// start runs them, through a function that chooses the network namespace.
func (c *checked) start(do func(func() error) error) {
	ctx, stop, log := logged(c.t)
	c.stop, c.log = stop, log
	go func() { c.ended <- do(func() error { return c.Run(ctx) }) }()
	c.t.Cleanup(func() {
		stop()
		select {
		case err := <-c.ended:
			if err != nil {
				c.t.Error(err)
			}
		case <-time.After(10 * time.Second):
			c.t.Error("the checks do not end")
		}
	})
}

func directly(f func() error) error { return f() }

// apply takes a step as the engine would tell it.
func (c *checked) apply(d *proxy.Delta) {
	c.state.Apply(d)
	c.Applied(d)
}

// set changes one check; nil takes it away.
func (c *checked) set(key proxy.HealthCheckKey, to *proxy.HealthCheck) {
	c.apply(&proxy.Delta{HealthChecks: []proxy.HealthCheckChange{{Old: c.state.HealthChecks[key], New: to}}})
}

// takes opens NodePorts on ranges of addresses.
func (c *checked) takes(ranges ...string) {
	n := &proxy.Node{}
	for _, r := range ranges {
		n.NodePorts = append(n.NodePorts, netip.MustParsePrefix(r))
	}
	c.apply(&proxy.Delta{Node: n})
}

func (c *checked) failed() []checkFailure {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.failures)
}

func keyOf(name string, f proxy.Family) proxy.HealthCheckKey {
	return proxy.HealthCheckKey{Namespace: "ns", Name: name, Family: f}
}

func checkOf(name string, f proxy.Family, port uint16, local int) *proxy.HealthCheck {
	return &proxy.HealthCheck{Key: keyOf(name, f), Port: port, Local: local}
}

// TestServiceCheckAnswers compares whole answers.
func TestServiceCheckAnswers(t *testing.T) {
	const body = "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": LOCAL,\n\t\"serviceProxyHealthy\": HEALTHY\n}"
	tests := []struct {
		name    string
		local   int
		healthy bool
		code    int
	}{
		{"endpoints here", 3, true, 200},
		{"no endpoints here", 0, true, 503},
		{"the proxy is ill", 3, false, 503},
		{"both", 0, false, 503},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newChecks(t, &linktest.Fake{})
			c.healthy.Store(tt.healthy)
			c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, 30100, tt.local))
			local, healthy := string(rune('0'+tt.local)), map[bool]string{true: "true", false: "false"}[tt.healthy]
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				w := httptest.NewRecorder()
				c.handler(keyOf("web", proxy.IPv4))(w, httptest.NewRequest(method, "/any/path", nil))
				want := strings.NewReplacer("LOCAL", local, "HEALTHY", healthy).Replace(body)
				if diff := cmp.Diff(want, w.Body.String()); diff != "" || w.Code != tt.code {
					t.Errorf("%s: code %d, want %d; body mismatch (-want +got):\n%s", method, w.Code, tt.code, diff)
				}
				header := http.Header{
					"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"}, "X-Load-Balancing-Endpoint-Weight": {local},
				}
				if diff := cmp.Diff(header, w.Header()); diff != "" {
					t.Errorf("headers mismatch (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestRequestThatRacesWithDeletion(t *testing.T) {
	c := newChecks(t, &linktest.Fake{})
	key := keyOf("web", proxy.IPv4)
	c.set(key, checkOf("web", proxy.IPv4, 30100, 1))
	h := c.handler(key)
	c.set(key, nil)
	w := httptest.NewRecorder()
	h(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable || w.Body.Len() != 0 {
		t.Errorf("code %d, body %q; want 503 and nothing", w.Code, w.Body)
	}
}

// TestServiceChecksFollowTheNode opens ports in a network namespace, and changes
// everything that they depend on.
func TestServiceChecksFollowTheNode(t *testing.T) {
	l := newLab(t)
	c := newChecks(t, link.Conn{})
	c.start(l.Node().Do)
	at := func(a string, port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), port) }
	want := func(what string, codes map[netip.AddrPort]int) {
		t.Helper()
		eventually(t, what, func() bool {
			for a, code := range codes {
				if l.code(a) != code {
					return false
				}
			}
			return true
		})
	}
	one, two, six, lo := "192.168.0.2", "192.168.1.2", "2001:db8::1", "127.0.0.1"
	c.takes("0.0.0.0/0", "::/0")
	c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, 30100, 1))
	c.set(keyOf("web", proxy.IPv6), checkOf("web", proxy.IPv6, 30100, 0))
	want("every address answers, each family for itself", map[netip.AddrPort]int{
		at(one, 30100): 200, at(two, 30100): 200, at(lo, 30100): 200, at(six, 30100): 503, at("::1", 30100): 503,
	})
	c.set(keyOf("web", proxy.IPv6), nil)
	want("one family is gone", map[netip.AddrPort]int{at(one, 30100): 200, at(six, 30100): 0})
	c.set(keyOf("web", proxy.IPv6), checkOf("web", proxy.IPv6, 30100, 1))

	c.takes("192.168.0.0/24", "2001:db8::1/128", "10.77.0.0/16")
	want("the ranges answer", map[netip.AddrPort]int{
		at(one, 30100): 200, at(two, 30100): 0, at(lo, 30100): 0, at(six, 30100): 200, at("2001:db8:1::2", 30100): 0, at("::1", 30100): 0,
	})
	late := netip.MustParseAddr("10.77.1.1")
	if err := l.Node().Bind(late); err != nil {
		t.Fatal(err)
	}
	want("an address came", map[netip.AddrPort]int{at("10.77.1.1", 30100): 200, at(one, 30100): 200})
	if err := l.Node().Unbind(late); err != nil {
		t.Fatal(err)
	}
	want("an address went", map[netip.AddrPort]int{at("10.77.1.1", 30100): 0, at(one, 30100): 200})

	c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, 30101, 1))
	want("another port", map[netip.AddrPort]int{at(one, 30100): 0, at(one, 30101): 200, at(six, 30100): 200})
	c.apply(&proxy.Delta{HealthChecks: []proxy.HealthCheckChange{
		{Old: c.state.HealthChecks[keyOf("web", proxy.IPv4)], New: checkOf("web", proxy.IPv4, 30102, 1)},
		{New: checkOf("api", proxy.IPv4, 30101, 0)},
	}})
	want("a port changes hands", map[netip.AddrPort]int{at(one, 30101): 503, at(one, 30102): 200})
	if f := c.failed(); len(f) != 0 {
		t.Errorf("failures %v; want none", f)
	}
	c.stop()
	want("it ended", map[netip.AddrPort]int{at(one, 30101): 0, at(one, 30102): 0, at(six, 30100): 0})
}

// TestPortInUse checks that a port in use is reported once, and retried with the next
// change.
func TestPortInUse(t *testing.T) {
	at, other := taken(t)
	addresses := &linktest.Fake{}
	addresses.Set(at.Addr())
	c := newChecks(t, addresses)
	c.takes("127.0.0.1/32")
	c.start(directly)
	c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, at.Port(), 1))
	eventually(t, "it is told", func() bool { return len(c.failed()) == 1 })
	f := c.failed()[0]
	if f.Check != *checkOf("web", proxy.IPv4, at.Port(), 1) || !errors.Is(f.Err, syscall.EADDRINUSE) || !strings.Contains(f.Err.Error(), at.String()) {
		t.Errorf("failure %+v; want one of the check and its address", f)
	}
	c.apply(&proxy.Delta{})
	other.Close()
	c.apply(&proxy.Delta{})
	eventually(t, "it listens", func() bool { _, err := get(t, at); return err == nil })
	eventually(t, "that is said", func() bool { return strings.Contains(c.log(), "Service health check listens now") })
	if n := len(c.failed()); n != 1 {
		t.Errorf("told %d times; want once", n)
	}
	c.set(keyOf("web", proxy.IPv4), nil)
	eventually(t, "it is gone", func() bool { _, err := get(t, at); return errors.Is(err, syscall.ECONNREFUSED) })
}

// TestAddressNotThere checks that an address which cannot be bound is reported only if a
// new list still has it: it may have been removed a moment ago.
func TestAddressNotThere(t *testing.T) {
	at, other := taken(t)
	other.Close()
	absent := netip.MustParseAddr("192.0.2.1") // No link has it.
	for _, tt := range []struct {
		name string
		now  []netip.Addr // what the node says when it is asked again
		told int
	}{
		{"it went", []netip.Addr{at.Addr()}, 0},
		{"it cannot be bound", []netip.Addr{at.Addr(), absent}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, stop, log := logged(t)
			defer stop()
			addresses := &linktest.Fake{}
			addresses.Set(at.Addr(), absent)
			c := newChecks(t, addresses)
			defer c.closeExcept(nil)
			c.takes("127.0.0.1/32", "192.0.2.1/32")
			c.set(keyOf("old", proxy.IPv4), checkOf("old", proxy.IPv4, at.Port(), 1)) // addresses are read for it
			c.reconcile(ctx)
			c.set(keyOf("old", proxy.IPv4), nil)
			before := len(c.failed())
			c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, at.Port(), 1))
			addresses.Set(tt.now...)
			for round, want := range []int{0, tt.told, tt.told, tt.told} {
				if round == 1 {
					c.nextList = time.Time{}
				}
				c.reconcile(ctx)
				if n := len(c.failed()) - before; n != want {
					t.Errorf("round %d: told %d times; want %d", round, n, want)
				}
			}
			if _, err := get(t, at); err != nil {
				t.Errorf("where it can it does not listen: %v", err)
			}
			if strings.Contains(log(), "listens now") {
				t.Error("the log says that the fault went")
			}
		})
	}
}

// TestPortInUseIsRetried checks that a port in use is retried without a change. It uses fake
// time, which stops while the listener is open.
func TestPortInUseIsRetried(t *testing.T) {
	at, other := taken(t)
	synctest.Test(t, func(t *testing.T) {
		addresses := &linktest.Fake{}
		addresses.Set(at.Addr())
		c := newChecks(t, addresses)
		c.takes("127.0.0.1/32")
		c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, at.Port(), 1))
		c.start(directly)
		time.Sleep(4*bindRetry - time.Millisecond)
		if n := len(c.failed()); n != 1 {
			t.Errorf("told %d times; want once", n)
		}
		other.Close()
		time.Sleep(time.Millisecond)
		for !strings.Contains(c.log(), "listens now") {
			runtime.Gosched()
		}
	})
}

func TestNoAddressTakesNodePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addresses := &linktest.Fake{}
		addresses.Set(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fe80::1"))
		c := newChecks(t, addresses)
		c.takes("192.0.2.0/24", "fe80::/10")
		c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, 30100, 1))
		c.set(keyOf("web", proxy.IPv6), checkOf("web", proxy.IPv6, 30100, 1))
		c.start(directly)
		synctest.Wait()
		f := c.failed()
		if len(f) != 2 || f[0].Check.Key.Family != proxy.IPv4 || f[1].Check.Key.Family != proxy.IPv6 {
			t.Fatalf("failures %v; want one for each family", f)
		}
		if want := "no address of this node accepts NodePorts in this family"; f[0].Err.Error() != want {
			t.Errorf("error %q; want %q", f[0].Err, want)
		}
	})
}

// TestAddressWatch lets the watch of addresses fail, work and end.
func TestAddressWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addresses := &linktest.Fake{}
		addresses.Fail(errors.New("no netlink"))
		c := newChecks(t, addresses)
		c.takes("192.0.2.0/24")
		c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, 30100, 1))
		c.start(directly)
		time.Sleep(3*bindRetry - time.Second)
		if n := strings.Count(c.log(), "addresses cannot be watched or listed"); n != 1 {
			t.Errorf("logged %d times; want once:\n%s", n, c.log())
		}
		addresses.Fail(nil)
		time.Sleep(2 * time.Second)
		watches := func() int { synctest.Wait(); return addresses.Watches() }
		if n := watches(); n != 1 {
			t.Errorf("%d watches after the failure; want 1", n)
		}
		addresses.Break()
		if n := watches(); n != 0 {
			t.Errorf("%d watches at once after a break; want it to rest", n)
		}
		time.Sleep(bindRetry + time.Second)
		if n := watches(); n != 1 {
			t.Errorf("%d watches after a break; want 1", n)
		}
	})
}

// slowAddresses takes its time to list addresses, and counts how often it does.
type slowAddresses struct {
	linktest.Fake
	listed int
}

func (a *slowAddresses) List() ([]netip.Addr, error) {
	a.listed++
	time.Sleep(time.Millisecond)
	return a.Fake.List()
}

// TestManyAddressChanges reads the addresses a few times while they change all the
// time, and once more after the last change.
func TestManyAddressChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &slowAddresses{}
		c := newChecks(t, a)
		c.takes("198.51.100.0/24") // none of those below, where it would listen
		c.set(keyOf("web", proxy.IPv4), checkOf("web", proxy.IPv4, 30100, 1))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		for range 1000 {
			a.Set(netip.MustParseAddr("192.0.2.1"))
			time.Sleep(100 * time.Microsecond)
		}
		during := a.listed
		a.Set(netip.MustParseAddr("192.0.2.2"))
		time.Sleep(time.Second)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if during > 10 || a.listed == during || !slices.Contains(c.locals, netip.MustParseAddr("192.0.2.2")) {
			t.Errorf("%d readings during 1000 changes, %d after, addresses %v", during, a.listed-during, c.locals)
		}
	})
}

// TestAddressesNobodyNeeds checks that addresses are neither listed nor watched if they are
// not needed: there may be one for each Service.
func TestAddressesNobodyNeeds(t *testing.T) {
	at, other := taken(t)
	other.Close()
	check := checkOf("web", proxy.IPv4, at.Port(), 1)
	for _, tt := range []struct {
		name    string
		takes   string
		check   *proxy.HealthCheck
		watches int
	}{
		{"no check", "127.0.0.1/32", nil, 0},
		{"all addresses", "0.0.0.0/0", check, 0},
		{"none of the family", "::1/128", check, 0},
		{"some addresses", "127.0.0.1/32", check, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, stop, _ := logged(t)
			defer stop()
			a := &slowAddresses{}
			c := newChecks(t, a)
			defer c.closeExcept(nil)
			c.takes(tt.takes)
			if tt.check != nil {
				c.set(tt.check.Key, tt.check)
			}
			c.reconcile(ctx)
			if a.listed != tt.watches || a.Watches() != tt.watches {
				t.Errorf("%d readings, %d watches; want %d", a.listed, a.Watches(), tt.watches)
			}
		})
	}
}
