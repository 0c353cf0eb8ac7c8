package app

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/engine"
	"sluice/internal/proxy"
)

// refusalTest is a refusals with what it has sent.
type refusalTest struct {
	*refusals
	t      *testing.T
	mu     sync.Mutex
	now    map[proxy.PortKey]string // what is refused
	events []string
}

// runRefusals runs a test in fake time.
func runRefusals(t *testing.T, play func(*refusalTest)) {
	synctest.Test(t, func(t *testing.T) {
		c := &refusalTest{t: t, now: map[proxy.PortKey]string{}}
		c.refusals = newRefusals(c.rows, func(e refusalEvent) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.events = append(c.events, fmt.Sprintf("%s %s %s", e.kind, e.service.Name, e.note))
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		play(c)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// rows is what the engine would say.
func (c *refusalTest) rows() []engine.RowStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []engine.RowStatus
	for _, k := range slices.SortedFunc(maps.Keys(c.now), proxy.ComparePortKeys) {
		all = append(all, engine.RowStatus{Key: k, Refused: c.now[k]})
	}
	return all
}

func portKey(service, port string, f proxy.Family) proxy.PortKey {
	return proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: service, Port: port, Protocol: proxy.TCP}, Family: f}
}

// say changes what is refused; an empty reason: it is accepted.
func (c *refusalTest) say(service, port string, f proxy.Family, reason string) {
	c.mu.Lock()
	c.now[portKey(service, port, f)] = reason
	maps.DeleteFunc(c.now, func(_ proxy.PortKey, reason string) bool { return reason == "" })
	c.mu.Unlock()
	c.changed()
}

// want checks all events since the last call, after a while.
func (c *refusalTest) want(want ...string) {
	c.t.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.events, want) {
		c.t.Errorf("events %q, want %q", c.events, want)
	}
	c.events = nil
}

func TestRefusalEvents(t *testing.T) {
	runRefusals(t, func(c *refusalTest) {
		c.say("web", "http", proxy.IPv4, "file exists")
		c.say("web", "http", proxy.IPv6, "file exists")
		c.want("Warning web http/TCP/IPv4: file exists; http/TCP/IPv6: file exists") // one for all its ports
		c.say("web", "http", proxy.IPv6, "file exists")
		c.want() // nothing new
		c.say("web", "http", proxy.IPv6, "")
		c.say("web", "http", proxy.IPv6, "file exists")
		c.want() // nothing that lasts
		c.say("web", "http", proxy.IPv4, "")
		c.want("Warning web http/TCP/IPv6: file exists")
		c.say("web", "http", proxy.IPv6, "")
		c.want("Normal web ")
		c.say("web", "http", proxy.IPv6, "")
		c.want()
	})
}

// TestManyRefusals lets 10,000 Services flap for an hour: few events are sent, and
// the counts and lists stay true.
func TestManyRefusals(t *testing.T) {
	const services = 10000
	rounds := 30
	if testing.Short() {
		rounds = 3
	}
	runRefusals(t, func(c *refusalTest) {
		t := c.t
		all := func(reason string) {
			c.mu.Lock()
			clear(c.now)
			for i := range services {
				if reason != "" {
					c.now[portKey(fmt.Sprintf("s%05d", i), "p", proxy.IPv4)] = reason
				}
			}
			c.mu.Unlock()
			c.changed()
		}
		for range rounds {
			all("set is full")
			if some, n := c.list(); len(some) != refusalsListed || n != services || some[0].ServicePort != "ns/s00000:p/TCP/IPv4" {
				t.Fatalf("%d of %d listed", len(some), n)
			}
			time.Sleep(time.Minute)
			all("")
			if some, n := c.list(); len(some) != 0 || n != 0 {
				t.Fatalf("%d of %d listed", len(some), n)
			}
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.events); n == 0 || n > refusalBurst+60 {
			t.Errorf("%d events in an hour", n)
		}
		if !strings.Contains(c.events[0], "10000 service ports are refused after changes of 10000 Services") {
			t.Errorf("the first event is %q", c.events[0])
		}
	})
}

// TestRefusalNotes checks the text of events.
func TestRefusalNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &apiServer{answers: []int{http.StatusCreated}}
		r := api.recorder(t)
		web := types.NamespacedName{Namespace: "ns", Name: "web"}
		for _, e := range []refusalEvent{
			{web, v1.EventTypeWarning, "http/TCP/IPv4: file exists"},
			{web, v1.EventTypeNormal, ""},
			{types.NamespacedName{}, v1.EventTypeWarning, "300 service ports are refused"},
			{types.NamespacedName{Namespace: "ns", Name: "long"}, v1.EventTypeWarning, strings.Repeat("ä", 2000)},
		} {
			r.refusal(e)
		}
		synctest.Wait()
		if len(api.events) != 4 {
			t.Fatalf("%d events, want 4", len(api.events))
		}
		for i, want := range []string{
			"Warning ServicePortRefused Service web: node node-1 does not serve http/TCP/IPv4: file exists",
			"Normal ServicePortAccepted Service web: node node-1 serves all ports again",
			"Warning ServicePortRefused Node node-1: 300 service ports are refused",
		} {
			e := api.events[i]
			if got := fmt.Sprintf("%s %s %s %s: %s", e.Type, e.Reason, e.Regarding.Kind, e.Regarding.Name, e.Note); got != want {
				t.Errorf("event %q, want %q", got, want)
			}
		}
		if note := api.events[3].Note; len(note) > maxNote || !utf8.ValidString(note) {
			t.Errorf("a long note has %d bytes", len(note))
		}
	})
}
