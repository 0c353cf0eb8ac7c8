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

// Addresses lists and watches the addresses of the node. [link.Conn] implements it.
type Addresses interface {
	// List returns the addresses that can be bound now.
	List() ([]netip.Addr, error)

	// Watch returns a channel that receives a value whenever addresses may have
	// changed since the last value was received. It is closed when ctx ends, or
	// earlier if changes were lost.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

type CheckSettings struct {
	Healthy   func() bool // reports whether the proxy is healthy
	Addresses Addresses

	// Failed is called when a check cannot listen on all its addresses, and again
	// when the reason changes. Only one goroutine calls it.
	Failed func(*proxy.HealthCheck, error)
}

// ServiceChecks serves the health-check node ports, at which load balancers ask whether
// this node has endpoints of a Service with externalTrafficPolicy Local. Each such
// Service and family has a port, which is open on the addresses that accept NodePorts.
type ServiceChecks struct {
	settings CheckSettings
	wake     chan struct{} // tells Run to reconcile

	mu        sync.Mutex
	checks    map[proxy.HealthCheckKey]*proxy.HealthCheck
	nodePorts []netip.Prefix
	failing   bool // some checks do not listen on all their addresses

	// These belong to the goroutine of Run.
	open     map[socket]*httpListener
	failures map[proxy.HealthCheckKey]string // why checks do not listen, as logged
	closing  sync.WaitGroup                  // closed listeners with requests in progress

	needLocals   bool            // a check listens on single addresses of the node
	locals       []netip.Addr    // the addresses of the node
	localsStale  bool            // locals may have changed since they were listed
	localsFresh  bool            // locals were listed by this reconcile, or are not needed
	nextList     time.Time       // locals are not listed before
	changed      <-chan struct{} // from the watch of addresses; nil if there is none
	watchTried   time.Time       // when the watch was last started, or failed to start
	addressError string          // why addresses cannot be watched or listed, as logged
}

// listPauseFactor times the duration of listing addresses is the pause before the next
// time: a mode that adds an address for each Service makes them change continually.
const listPauseFactor = 20

// socket is where one check listens.
type socket struct {
	key proxy.HealthCheckKey
	at  netip.AddrPort
}

// NewServiceChecks returns a ServiceChecks without checks. It does not listen before
// Run, which is called once.
func NewServiceChecks(s CheckSettings) *ServiceChecks {
	return &ServiceChecks{
		settings: s,
		wake:     make(chan struct{}, 1),
		checks:   map[proxy.HealthCheckKey]*proxy.HealthCheck{},
		open:     map[socket]*httpListener{},
	}
}

// Applied applies the changes of health checks and of the Node. Its cost is linear in
// the changed health checks; Run opens and closes sockets.
func (c *ServiceChecks) Applied(d *proxy.Delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reconcile := c.failing // Retry with every change.
	for _, change := range d.HealthChecks {
		if change.New == nil {
			delete(c.checks, change.Key())
		} else {
			c.checks[change.Key()] = change.New
		}
		reconcile = reconcile || change.ChangesPort()
	}
	if d.Node != nil && !slices.Equal(c.nodePorts, d.Node.NodePorts) {
		c.nodePorts = d.Node.NodePorts
		reconcile = true
	}
	if reconcile {
		notify(c.wake)
	}
}

// checkResponse is the body of a response.
type checkResponse struct {
	Service checkedService `json:"service"`
	Local   int            `json:"localEndpoints"`
	Healthy bool           `json:"serviceProxyHealthy"`
}

type checkedService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// handler returns the handler of one check, for any path and method.
func (c *ServiceChecks) handler(k proxy.HealthCheckKey) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		check := c.checks[k]
		c.mu.Unlock()
		if check == nil { // It was deleted while the request was in flight.
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		healthy := c.settings.Healthy()
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Local))
		writeJSON(w, healthy && check.Local > 0, checkResponse{
			Service: checkedService{k.Namespace, k.Name}, Local: check.Local, Healthy: healthy,
		}, func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "\t") })
	}
}

// Run serves all checks until ctx ends, and then returns nil. Addresses that cannot be
// bound are retried with the next call of Applied, when addresses change, and after
// bindRetry.
func (c *ServiceChecks) Run(ctx context.Context) error {
	defer c.closing.Wait()
	defer func() { c.closeExcept(nil) }()
	for ctx.Err() == nil {
		c.reconcile(ctx)
		var retry <-chan time.Time
		if pause := time.Until(c.nextList); c.needLocals && c.localsStale && pause > 0 {
			retry = time.After(pause)
		} else if c.needLocals && (c.changed == nil || c.localsStale) || len(c.failures) > 0 {
			retry = time.After(bindRetry)
		}
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-retry:
		case _, open := <-c.changed:
			c.localsStale = true
			if !open {
				c.changed = nil
			}
		}
	}
	return nil
}

// listAddresses lists the addresses if they are needed and may have changed, and starts
// to watch them. It logs errors, each once in a row.
func (c *ServiceChecks) listAddresses(ctx context.Context) {
	var err error
	if c.localsFresh = !c.needLocals; c.localsFresh {
		return
	}
	if c.changed == nil && time.Since(c.watchTried) >= bindRetry {
		c.localsStale, c.watchTried = true, time.Now()
		c.changed, err = c.settings.Addresses.Watch(ctx)
	}
	if began := time.Now(); c.localsStale && !began.Before(c.nextList) {
		locals, listErr := c.settings.Addresses.List()
		c.nextList = time.Now().Add(listPauseFactor * time.Since(began))
		if listErr == nil {
			slices.SortFunc(locals, netip.Addr.Compare)
			c.locals, c.localsStale, c.localsFresh = slices.Compact(locals), false, true
		}
		err = cmp.Or(listErr, err)
	}
	switch {
	case err == nil && c.changed != nil:
		c.addressError = ""
	case err != nil && err.Error() != c.addressError && ctx.Err() == nil:
		c.addressError = err.Error()
		klog.FromContext(ctx).Error(err, "Node addresses cannot be watched or listed and are retried, health checks may miss new addresses until then",
			"retryIn", bindRetry)
	}
}

// reconcile makes every check listen on its addresses. It closes all sockets that are
// not wanted any more before it opens others, because a port may belong to another
// Service now.
func (c *ServiceChecks) reconcile(ctx context.Context) {
	c.mu.Lock()
	checks, nodePorts := slices.Collect(maps.Values(c.checks)), c.nodePorts
	c.mu.Unlock()
	c.needLocals = slices.ContainsFunc(checks, func(h *proxy.HealthCheck) bool {
		ranges := proxy.PrefixesOf(nodePorts, h.Key.Family)
		return len(ranges) > 0 && !slices.ContainsFunc(ranges, isAll)
	})
	c.listAddresses(ctx)
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
	c.closeExcept(wanted)
	before := c.failures
	c.failures = map[proxy.HealthCheckKey]string{}
	for _, check := range checks {
		var errs []error
		for _, a := range addresses[check.Key.Family] {
			errs = append(errs, c.listen(ctx, socket{check.Key, netip.AddrPortFrom(a, check.Port)}))
		}
		if len(errs) == 0 {
			errs = append(errs, errors.New("no address of this node accepts NodePorts in this family"))
		}
		err := errors.Join(errs...)
		if errors.Is(err, syscall.EADDRNOTAVAIL) && !c.localsFresh {
			// An address was removed after locals were listed. The next list shows it.
			c.localsStale = true
			if logged := before[check.Key]; logged != "" {
				c.failures[check.Key] = logged
			}
			continue
		}
		c.report(ctx, check, err, before[check.Key])
	}
	c.mu.Lock()
	c.failing = len(c.failures) > 0
	c.mu.Unlock()
}

// addressesFor returns the addresses to listen on in a family: the unspecified address
// if all addresses accept NodePorts, otherwise each local address that does.
func addressesFor(nodePorts []netip.Prefix, locals []netip.Addr, f proxy.Family) []netip.Addr {
	ranges := proxy.PrefixesOf(nodePorts, f)
	if slices.ContainsFunc(ranges, isAll) {
		return []netip.Addr{f.Unspecified()}
	}
	return slices.DeleteFunc(slices.Clone(locals), func(a netip.Addr) bool {
		within := func(p netip.Prefix) bool { return p.Contains(a) }
		// A link-local IPv6 address is ambiguous without an interface.
		return !slices.ContainsFunc(ranges, within) || a.Is6() && a.IsLinkLocalUnicast()
	})
}

func isAll(p netip.Prefix) bool { return p.Bits() == 0 }

// listen opens a socket if it is not open.
func (c *ServiceChecks) listen(ctx context.Context, s socket) error {
	if c.open[s] == nil {
		// A socket of network "tcp" at the unspecified address would take the port in
		// both families.
		network := [...]string{proxy.IPv4: "tcp4", proxy.IPv6: "tcp6"}[s.key.Family]
		l, err := listen(ctx, network, s.at, &http.Server{Handler: c.handler(s.key), WriteTimeout: headerTimeout})
		if err != nil {
			return err
		}
		c.open[s] = l
	}
	return nil
}

// report logs whether a check listens, if that changed. before is the error that was
// logged last, or empty.
func (c *ServiceChecks) report(ctx context.Context, check *proxy.HealthCheck, err error, before string) {
	logger := klog.FromContext(ctx)
	if err == nil {
		if before != "" {
			logger.Info("Service health check listens now", "check", check.Key, "port", check.Port)
		}
		return
	}
	c.failures[check.Key] = err.Error()
	if err.Error() != before && ctx.Err() == nil {
		logger.Error(err, "Service health check cannot listen and is retried, load balancers may take this node for unhealthy",
			"check", check.Key, "port", check.Port)
		c.settings.Failed(check, err)
	}
}

// closeExcept closes all sockets but the wanted ones.
func (c *ServiceChecks) closeExcept(wanted map[socket]bool) {
	for s, l := range c.open {
		if !wanted[s] {
			l.close(&c.closing)
			delete(c.open, s)
		}
	}
}
