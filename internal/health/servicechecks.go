package health

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

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

type CheckSettings struct {
	Healthy   func() bool // whether the proxy does its work
	Addresses Addresses

	// Failed is told, by one goroutine, why a check cannot be answered everywhere
	// it should, when that begins and when it changes.
	Failed func(*proxy.HealthCheck, error)
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

	// These belong to the goroutine of Run.
	open       map[socket]*listening
	complaints map[proxy.HealthCheckKey]string // what was said of those that are not as they should be
	gone       sync.WaitGroup                  // sockets that were closed, until their last answers
	changed    <-chan struct{}                 // from the watch of addresses; nil: nobody watches
	watched    time.Time                       // when the watch was last begun, or tried
	needed     bool                            // a check listens at addresses of the node's own
	stale      bool                            // they may have changed
	fresh      bool                            // they were read in this round, or are not needed
	rested     time.Time                       // they are not read before
	locals     []netip.Addr
	blind      string // why addresses are not known, as said
}

// restFactor is how many times its own length a reading of addresses is followed by
// rest: a mode that adds an address for each Service makes them change without end.
const restFactor = 20

// socket is where one check listens.
type socket struct {
	key proxy.HealthCheckKey
	at  netip.AddrPort
}

// NewServiceChecks returns checks of no Service. They do not listen before Run,
// which is called once.
func NewServiceChecks(s CheckSettings) *ServiceChecks {
	return &ServiceChecks{
		settings: s,
		wake:     make(chan struct{}, 1),
		checks:   map[proxy.HealthCheckKey]*proxy.HealthCheck{},
		open:     map[socket]*listening{},
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
		moved = moved || change.ChangesPort()
	}
	if d.Node != nil && !slices.Equal(c.nodePorts, d.Node.NodePorts) {
		c.nodePorts = d.Node.NodePorts
		moved = true
	}
	if moved {
		notify(c.wake)
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

// handler answers for one Service, on any path and to any method.
func (c *ServiceChecks) handler(k proxy.HealthCheckKey) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		check := c.checks[k]
		c.mu.Unlock()
		if check == nil {
			return // The Service went while the request came: nothing can be said.
		}
		healthy := c.settings.Healthy()
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Local))
		answerJSON(w, healthy && check.Local > 0, checkAnswer{
			Service: checkedService{k.Namespace, k.Name}, Local: check.Local, Healthy: healthy,
		}, func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "\t") })
	}
}

// Run listens for all checks until ctx ends, and then returns nil. What cannot
// be had is tried again with the next step, when addresses change, and from
// time to time.
func (c *ServiceChecks) Run(ctx context.Context) error {
	defer c.gone.Wait()
	defer func() { c.closeBut(nil) }()
	for ctx.Err() == nil {
		c.reconcile(ctx)
		var again <-chan time.Time
		if rest := time.Until(c.rested); c.needed && c.stale && rest > 0 {
			again = time.After(rest)
		} else if c.needed && (c.changed == nil || c.stale) || len(c.complaints) > 0 {
			again = time.After(bindRetry)
		}
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-again:
		case _, open := <-c.changed:
			c.stale = true
			if !open {
				c.changed = nil
			}
		}
	}
	return nil
}

// readAddresses reads the addresses if they are needed and may have changed, and
// sees to it that they are watched. It says once why it cannot.
func (c *ServiceChecks) readAddresses(ctx context.Context) {
	var err error
	if c.fresh = !c.needed; c.fresh {
		return
	}
	if c.changed == nil && time.Since(c.watched) >= bindRetry {
		c.stale, c.watched = true, time.Now()
		c.changed, err = c.settings.Addresses.Watch(ctx)
	}
	if began := time.Now(); c.stale && !began.Before(c.rested) {
		locals, unread := c.settings.Addresses.List()
		c.rested = time.Now().Add(restFactor * time.Since(began))
		if unread == nil {
			slices.SortFunc(locals, netip.Addr.Compare)
			c.locals, c.stale, c.fresh = slices.Compact(locals), false, true
		}
		err = cmp.Or(unread, err)
	}
	switch {
	case err == nil && c.changed != nil:
		c.blind = ""
	case err != nil && err.Error() != c.blind && ctx.Err() == nil:
		c.blind = err.Error()
		klog.FromContext(ctx).Error(err, "Changes of the node's addresses may be seen late, will try again", "retryIn", bindRetry)
	}
}

// reconcile makes every check listen where it should. All that is not wanted
// any more is closed before anything is opened, because ports change hands.
func (c *ServiceChecks) reconcile(ctx context.Context) {
	c.mu.Lock()
	checks, nodePorts := slices.Collect(maps.Values(c.checks)), c.nodePorts
	c.mu.Unlock()
	c.needed = slices.ContainsFunc(checks, func(h *proxy.HealthCheck) bool {
		ranges := proxy.PrefixesOf(nodePorts, h.Key.Family)
		return len(ranges) > 0 && !slices.ContainsFunc(ranges, isAll)
	})
	c.readAddresses(ctx)
	slices.SortFunc(checks, func(a, b *proxy.HealthCheck) int { return proxy.CompareHealthCheckKeys(a.Key, b.Key) })
	var addresses [len(proxy.Families)][]netip.Addr
	for _, f := range proxy.Families {
		addresses[f] = addressesFor(nodePorts, c.locals, f)
	}
	wanted := map[socket]bool{}
	for _, check := range checks {
		for _, a := range addresses[check.Key.Family] {
			wanted[socket{check.Key, netip.AddrPortFrom(a, check.Port)}] = true
		}
	}
	c.closeBut(wanted)
	before := c.complaints
	c.complaints = map[proxy.HealthCheckKey]string{}
	for _, check := range checks {
		var errs []error
		for _, a := range addresses[check.Key.Family] {
			errs = append(errs, c.listen(ctx, socket{check.Key, netip.AddrPortFrom(a, check.Port)}))
		}
		if len(errs) == 0 {
			errs = append(errs, errors.New("no address of this node takes NodePorts in this family"))
		}
		err := errors.Join(errs...)
		if errors.Is(err, syscall.EADDRNOTAVAIL) && !c.fresh {
			// An address went, and the reading that says so is still to come.
			c.stale = true
			if said := before[check.Key]; said != "" {
				c.complaints[check.Key] = said
			}
			continue
		}
		c.report(ctx, check, err, before[check.Key])
	}
	c.mu.Lock()
	c.failing = len(c.complaints) > 0
	c.mu.Unlock()
}

// addressesFor returns where ports of a family are to be opened: at the address
// that stands for all, or at each of the node's own that takes NodePorts.
func addressesFor(nodePorts []netip.Prefix, locals []netip.Addr, f proxy.Family) []netip.Addr {
	ranges := proxy.PrefixesOf(nodePorts, f)
	if slices.ContainsFunc(ranges, isAll) {
		return []netip.Addr{f.Unspecified()}
	}
	return slices.DeleteFunc(slices.Clone(locals), func(a netip.Addr) bool {
		within := func(p netip.Prefix) bool { return p.Contains(a) }
		// The link-local address of IPv6 is one only together with a link.
		return !slices.ContainsFunc(ranges, within) || a.Is6() && a.IsLinkLocalUnicast()
	})
}

func isAll(p netip.Prefix) bool { return p.Bits() == 0 }

// listen opens a socket that is not open.
func (c *ServiceChecks) listen(ctx context.Context, s socket) error {
	if c.open[s] == nil {
		// The families listen apart, so neither may take the other's port.
		network := [...]string{proxy.IPv4: "tcp4", proxy.IPv6: "tcp6"}[s.key.Family]
		l, err := listen(ctx, network, s.at, &http.Server{Handler: c.handler(s.key), WriteTimeout: headerTimeout})
		if err != nil {
			return err
		}
		c.open[s] = l
	}
	return nil
}

// report says how a check came out, if that is not what was said before.
func (c *ServiceChecks) report(ctx context.Context, check *proxy.HealthCheck, err error, before string) {
	logger := klog.FromContext(ctx)
	if err == nil {
		if before != "" {
			logger.Info("Service health check listens now", "check", check.Key, "port", check.Port)
		}
		return
	}
	c.complaints[check.Key] = err.Error()
	if err.Error() != before && ctx.Err() == nil {
		logger.Error(err, "Service health check cannot listen, will try again", "check", check.Key, "port", check.Port)
		c.settings.Failed(check, err)
	}
}

func (c *ServiceChecks) closeBut(wanted map[socket]bool) {
	for s, l := range c.open {
		if !wanted[s] {
			l.close(&c.gone)
			delete(c.open, s)
		}
	}
}
