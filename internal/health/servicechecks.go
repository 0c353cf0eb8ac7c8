package health

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"sluice/internal/proxy"
)

// Addresses tells which addresses the node has. [link.Conn] does.
type Addresses interface {
	// List returns the addresses that can be bound now.
	List() ([]netip.Addr, error)

	// Watch returns a channel that has a token whenever addresses may have
	// changed since the last one was taken. It is closed when ctx ends, or
	// earlier when changes were lost.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// CheckFailure is a health check that cannot be answered everywhere it should.
type CheckFailure struct {
	Check proxy.HealthCheck
	Err   error
}

// CheckSettings are what ServiceChecks are made of.
type CheckSettings struct {
	Healthy   func() bool // whether the proxy does its work
	Addresses Addresses

	// Failed is told of each failure when it begins and when it changes, by one
	// goroutine. Nil: nobody is.
	Failed func(context.Context, CheckFailure)
}

// ServiceChecks answers load balancers that ask whether this node has endpoints
// for a Service of policy Local, at one port for each such Service and family.
// They are opened on the addresses that take NodePorts, and follow them.
type ServiceChecks struct {
	settings CheckSettings
	wake     chan struct{} // there is something for Run to do

	mu        sync.Mutex
	checks    map[proxy.HealthCheckKey]*proxy.HealthCheck // as answered
	moved     map[proxy.HealthCheckKey]struct{}           // those that may listen elsewhere than they should
	allMoved  bool
	nodePorts []netip.Prefix
}

// NewServiceChecks returns checks of no Service. They do not listen before Run.
func NewServiceChecks(s CheckSettings) *ServiceChecks {
	return &ServiceChecks{
		settings: s,
		wake:     make(chan struct{}, 1),
		checks:   map[proxy.HealthCheckKey]*proxy.HealthCheck{},
		moved:    map[proxy.HealthCheckKey]struct{}{},
	}
}

// Applied takes a step. Its cost is that of the step's health checks; sockets
// are Run's business.
func (c *ServiceChecks) Applied(d *proxy.Delta) {
	c.mu.Lock()
	for _, change := range d.HealthChecks {
		key := change.Key()
		if change.New == nil {
			delete(c.checks, key)
		} else {
			c.checks[key] = change.New
		}
		if change.Moves() {
			c.moved[key] = struct{}{}
		}
	}
	if d.Node != nil && !slices.Equal(c.nodePorts, d.Node.NodePorts) {
		c.nodePorts = d.Node.NodePorts
		c.allMoved = true
	}
	c.mu.Unlock()
	notify(c.wake)
}

// check returns what is known of a Service; nil if it is gone.
func (c *ServiceChecks) check(k proxy.HealthCheckKey) *proxy.HealthCheck {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.checks[k]
}

// handler answers for one Service, on any path and to any method.
func (c *ServiceChecks) handler(k proxy.HealthCheckKey) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		check := c.check(k)
		if check == nil {
			return // The Service went while the request came: nothing can be said.
		}
		healthy := c.settings.Healthy()
		setJSON(w.Header())
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Local))
		w.WriteHeader(status(healthy && check.Local > 0))
		// A prober that went away has nothing to be told.
		_, _ = w.Write(checkBody(check, healthy))
	}
}

// checkBody returns the answer, indented by tabs.
func checkBody(c *proxy.HealthCheck, healthy bool) []byte {
	b := make([]byte, 0, 256)
	b = append(b, "{\n\t\"service\": {\n\t\t\"namespace\": "...)
	b = strconv.AppendQuote(b, c.Key.Namespace)
	b = append(b, ",\n\t\t\"name\": "...)
	b = strconv.AppendQuote(b, c.Key.Name)
	b = append(b, "\n\t},\n\t\"localEndpoints\": "...)
	b = strconv.AppendInt(b, int64(c.Local), 10)
	b = append(b, ",\n\t\"serviceProxyHealthy\": "...)
	b = strconv.AppendBool(b, healthy)
	return append(b, "\n}"...)
}
