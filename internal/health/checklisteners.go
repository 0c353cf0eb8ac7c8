package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
)

// Run listens for all checks until ctx ends, and then returns nil. What cannot
// be had is tried again with the next step, when addresses change, and from
// time to time.
func (c *ServiceChecks) Run(ctx context.Context) error {
	l := &checkListeners{
		ServiceChecks: c,
		open:          map[proxy.HealthCheckKey]map[netip.AddrPort]*listening{},
		failures:      map[proxy.HealthCheckKey]string{},
	}
	defer l.gone.Wait()
	defer l.closeAll()
	for ctx.Err() == nil {
		if l.changed == nil && time.Since(l.watched) >= bindRetry {
			l.watch(ctx)
		}
		l.reconcile(ctx)
		var again <-chan time.Time
		if l.changed == nil || l.stale || len(l.failures) > 0 {
			again = time.After(bindRetry)
		}
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-again:
		case _, open := <-l.changed:
			l.stale = true
			if !open {
				l.changed = nil
			}
		}
	}
	return nil
}

// checkListeners are the sockets of all checks. They belong to one Run.
type checkListeners struct {
	*ServiceChecks
	open     map[proxy.HealthCheckKey]map[netip.AddrPort]*listening
	failures map[proxy.HealthCheckKey]string // what was said of those that are not as they should be
	gone     sync.WaitGroup                  // those that were closed, until their last answers

	changed <-chan struct{} // from the watch of addresses; nil: nobody watches
	watched time.Time       // when the watch was last begun, or tried
	stale   bool            // addresses may have changed
	locals  []netip.Addr
	blind   string // why addresses are not known, as said
}

// watch begins to watch addresses. What changed before is read anew.
func (l *checkListeners) watch(ctx context.Context) {
	l.stale, l.watched = true, time.Now()
	changed, err := l.settings.Addresses.Watch(ctx)
	if err != nil {
		l.complain(ctx, err)
		return
	}
	l.changed = changed
}

// refresh reads the addresses, and reports whether they are others than before.
func (l *checkListeners) refresh(ctx context.Context) bool {
	if !l.stale {
		return false
	}
	locals, err := l.settings.Addresses.List()
	if err != nil {
		l.complain(ctx, err)
		return false
	}
	if l.changed != nil {
		l.blind = ""
	}
	l.stale = false
	slices.SortFunc(locals, netip.Addr.Compare)
	was := l.locals
	l.locals = slices.Compact(locals)
	return !slices.Equal(was, l.locals)
}

// complain says once why addresses are not known.
func (l *checkListeners) complain(ctx context.Context, err error) {
	if text := err.Error(); text != l.blind && ctx.Err() == nil {
		l.blind = text
		klog.FromContext(ctx).Error(err, "Changes of the node's addresses may be seen late, will try again", "retryIn", bindRetry)
	}
}

// goal is where one check should listen.
type goal struct {
	check *proxy.HealthCheck // nil: it is gone
	at    []netip.AddrPort
}

// reconcile makes every check listen where it should. All that is not wanted
// any more is closed before anything is opened, because ports change hands.
func (l *checkListeners) reconcile(ctx context.Context) {
	goals := l.goals(l.refresh(ctx))
	for key, g := range goals {
		l.closeOthers(key, g.at)
	}
	for _, key := range slices.SortedFunc(maps.Keys(goals), proxy.CompareHealthCheckKeys) {
		g := goals[key]
		if g.check == nil {
			delete(l.failures, key)
			continue
		}
		l.settle(ctx, g, l.listen(ctx, g))
	}
}

// goals takes what has to be looked at: with all, or when NodePorts moved,
// every check, else those that moved and those that failed.
func (l *checkListeners) goals(all bool) map[proxy.HealthCheckKey]goal {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := l.moved
	if all || l.allMoved {
		for key := range l.checks {
			keys[key] = struct{}{}
		}
	}
	for key := range l.failures {
		keys[key] = struct{}{}
	}
	goals := make(map[proxy.HealthCheckKey]goal, len(keys))
	for key := range keys {
		g := goal{check: l.checks[key]}
		if g.check != nil {
			g.at = l.addresses(key.Family, g.check.Port)
		}
		goals[key] = g
	}
	l.moved, l.allMoved = map[proxy.HealthCheckKey]struct{}{}, false
	return goals
}

// addresses returns where a port of a family is to be opened: at the one that
// stands for all, or at each of the node's own that takes NodePorts.
func (l *checkListeners) addresses(f proxy.Family, port uint16) []netip.AddrPort {
	ranges := proxy.PrefixesOf(l.nodePorts, f)
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return []netip.AddrPort{netip.AddrPortFrom(f.Unspecified(), port)}
	}
	var at []netip.AddrPort
	for _, a := range l.locals {
		within := func(p netip.Prefix) bool { return p.Contains(a) }
		// The link-local address of IPv6 is one only together with a link.
		if slices.ContainsFunc(ranges, within) && !(a.Is6() && a.IsLinkLocalUnicast()) {
			at = append(at, netip.AddrPortFrom(a, port))
		}
	}
	return at
}

// listen listens where a check should and does not.
func (l *checkListeners) listen(ctx context.Context, g goal) error {
	if len(g.at) == 0 {
		return errors.New("no address of this node takes NodePorts in this family")
	}
	key := g.check.Key
	if l.open[key] == nil {
		l.open[key] = map[netip.AddrPort]*listening{}
	}
	var errs []error
	for _, at := range g.at {
		if l.open[key][at] != nil {
			continue
		}
		// The families listen apart, so neither may take the other's port.
		listener, err := listen(ctx, network(key.Family), at)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		server := newHTTPServer(ctx, l.handler(key))
		server.WriteTimeout = headerTimeout
		l.open[key][at] = serve(listener, server)
	}
	return errors.Join(errs...)
}

func network(f proxy.Family) string {
	switch f {
	case proxy.IPv4:
		return "tcp4"
	case proxy.IPv6:
		return "tcp6"
	default:
		panic(fmt.Sprintf("unknown family %v", f))
	}
}

// settle notes how a check came out, and says so when that is news.
func (l *checkListeners) settle(ctx context.Context, g goal, err error) {
	key := g.check.Key
	logger := klog.FromContext(ctx)
	if err == nil {
		if _, failed := l.failures[key]; failed {
			delete(l.failures, key)
			logger.Info("Service health check listens now", "check", key, "port", g.check.Port)
		}
		return
	}
	if text := err.Error(); l.failures[key] != text && ctx.Err() == nil {
		l.failures[key] = text
		logger.Error(err, "Service health check cannot listen, will try again", "check", key, "port", g.check.Port)
		if l.settings.Failed != nil {
			l.settings.Failed(ctx, CheckFailure{Check: *g.check, Err: err})
		}
	}
}

// closeOthers closes what a check has open elsewhere.
func (l *checkListeners) closeOthers(key proxy.HealthCheckKey, at []netip.AddrPort) {
	for a, listening := range l.open[key] {
		if !slices.Contains(at, a) {
			listening.close(&l.gone)
			delete(l.open[key], a)
		}
	}
	if len(l.open[key]) == 0 {
		delete(l.open, key)
	}
}

// closeAll closes everything.
func (l *checkListeners) closeAll() {
	for key := range l.open {
		l.closeOthers(key, nil)
	}
}
