package health

import (
	"context"
	"encoding/json"
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
	nodePorts []netip.Prefix
	failing   bool // some do not listen where they should
}

// NewServiceChecks returns checks of no Service. They do not listen before Run.
func NewServiceChecks(s CheckSettings) *ServiceChecks {
	return &ServiceChecks{
		settings: s,
		wake:     make(chan struct{}, 1),
		checks:   map[proxy.HealthCheckKey]*proxy.HealthCheck{},
	}
}

// Applied takes a step. Its cost is that of the step's health checks; sockets
// are Run's business.
func (c *ServiceChecks) Applied(d *proxy.Delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	moved := c.failing
	for _, change := range d.HealthChecks {
		if change.New == nil {
			delete(c.checks, change.Key())
		} else {
			c.checks[change.Key()] = change.New
		}
		moved = moved || change.Moves()
	}
	if d.Node != nil && !slices.Equal(c.nodePorts, d.Node.NodePorts) {
		c.nodePorts = d.Node.NodePorts
		moved = true
	}
	if moved {
		notify(c.wake)
	}
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
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Local))
		answerJSON(w, healthy && check.Local > 0, checkAnswer{
			Service: checkedService{check.Key.Namespace, check.Key.Name},
			Local:   check.Local,
			Healthy: healthy,
		}, func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "\t") })
	}
}

// checkAnswer is what a load balancer may read.
type checkAnswer struct {
	Service checkedService `json:"service"`
	Local   int            `json:"localEndpoints"`
	Healthy bool           `json:"serviceProxyHealthy"`
}

type checkedService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}
