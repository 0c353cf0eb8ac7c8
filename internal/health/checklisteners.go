package health

import (
	"cmp"
	"context"
	"errors"
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
	l := &checkListeners{ServiceChecks: c, open: map[socket]*listening{}, complaints: map[proxy.HealthCheckKey]string{}}
	defer l.gone.Wait()
	defer func() { l.closeBut(nil) }()
	for ctx.Err() == nil {
		if l.changed == nil && time.Since(l.watched) >= bindRetry {
			l.watch(ctx)
		}
		if l.stale {
			l.refresh(ctx)
		}
		l.reconcile(ctx)
		var again <-chan time.Time
		if l.changed == nil || l.stale || len(l.complaints) > 0 {
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
	open       map[socket]*listening
	complaints map[proxy.HealthCheckKey]string // what was said of those that are not as they should be
	gone       sync.WaitGroup                  // those that were closed, until their last answers

	changed <-chan struct{} // from the watch of addresses; nil: nobody watches
	watched time.Time       // when the watch was last begun, or tried
	stale   bool            // addresses may have changed
	locals  []netip.Addr
	blind   string // why addresses are not known, as said
}

// socket is where one check listens.
type socket struct {
	key proxy.HealthCheckKey
	at  netip.AddrPort
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

// refresh reads the addresses.
func (l *checkListeners) refresh(ctx context.Context) {
	locals, err := l.settings.Addresses.List()
	if err != nil {
		l.complain(ctx, err)
		return
	}
	if l.changed != nil {
		l.blind = ""
	}
	l.locals, l.stale = locals, false
}

// complain says once why addresses are not known.
func (l *checkListeners) complain(ctx context.Context, err error) {
	if text := err.Error(); text != l.blind && ctx.Err() == nil {
		l.blind = text
		klog.FromContext(ctx).Error(err, "Changes of the node's addresses may be seen late, will try again", "retryIn", bindRetry)
	}
}

// reconcile makes every check listen where it should. All that is not wanted
// any more is closed before anything is opened, because ports change hands.
func (l *checkListeners) reconcile(ctx context.Context) {
	l.mu.Lock()
	checks, nodePorts := slices.Collect(maps.Values(l.checks)), l.nodePorts
	l.mu.Unlock()
	wanted := map[socket]bool{}
	for _, c := range checks {
		for _, a := range addressesFor(nodePorts, l.locals, c.Key.Family) {
			wanted[socket{c.Key, netip.AddrPortFrom(a, c.Port)}] = true
		}
	}
	l.closeBut(wanted)
	failures := map[proxy.HealthCheckKey][]error{}
	listens := map[proxy.HealthCheckKey]bool{}
	for _, s := range slices.SortedFunc(maps.Keys(wanted), func(a, b socket) int {
		return cmp.Or(proxy.CompareHealthCheckKeys(a.key, b.key), a.at.Compare(b.at))
	}) {
		listens[s.key] = true
		if err := l.listen(ctx, s); err != nil {
			failures[s.key] = append(failures[s.key], err)
		}
	}
	slices.SortFunc(checks, func(a, b *proxy.HealthCheck) int { return proxy.CompareHealthCheckKeys(a.Key, b.Key) })
	before := l.complaints
	l.complaints = map[proxy.HealthCheckKey]string{}
	for _, c := range checks {
		err := errors.Join(failures[c.Key]...)
		if !listens[c.Key] {
			err = errors.New("no address of this node takes NodePorts in this family")
		}
		l.report(ctx, c, err, before[c.Key])
	}
	l.mu.Lock()
	l.failing = len(l.complaints) > 0
	l.mu.Unlock()
}

// addressesFor returns where ports of a family are to be opened: at the address
// that stands for all, or at each of the node's own that takes NodePorts.
func addressesFor(nodePorts []netip.Prefix, locals []netip.Addr, f proxy.Family) []netip.Addr {
	ranges := proxy.PrefixesOf(nodePorts, f)
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return []netip.Addr{f.Unspecified()}
	}
	var at []netip.Addr
	for _, a := range locals {
		within := func(p netip.Prefix) bool { return p.Contains(a) }
		// The link-local address of IPv6 is one only together with a link.
		if slices.ContainsFunc(ranges, within) && !(a.Is6() && a.IsLinkLocalUnicast()) {
			at = append(at, a)
		}
	}
	return at
}

// listen opens a socket that is not open.
func (l *checkListeners) listen(ctx context.Context, s socket) error {
	if l.open[s] != nil {
		return nil
	}
	// The families listen apart, so neither may take the other's port.
	network := map[proxy.Family]string{proxy.IPv4: "tcp4", proxy.IPv6: "tcp6"}[s.key.Family]
	listening, err := listen(ctx, network, s.at, l.handler(s.key))
	if err != nil {
		return err
	}
	listening.http.WriteTimeout = headerTimeout
	listening.serve()
	l.open[s] = listening
	return nil
}

// report says how a check came out, if that is not what was said before.
func (l *checkListeners) report(ctx context.Context, c *proxy.HealthCheck, err error, before string) {
	logger := klog.FromContext(ctx)
	if err == nil {
		if before != "" {
			logger.Info("Service health check listens now", "check", c.Key, "port", c.Port)
		}
		return
	}
	l.complaints[c.Key] = err.Error()
	if err.Error() != before && ctx.Err() == nil {
		logger.Error(err, "Service health check cannot listen, will try again", "check", c.Key, "port", c.Port)
		if l.settings.Failed != nil {
			l.settings.Failed(ctx, CheckFailure{Check: *c, Err: err})
		}
	}
}

// closeBut closes the sockets that are not wanted.
func (l *checkListeners) closeBut(wanted map[socket]bool) {
	for s, listening := range l.open {
		if !wanted[s] {
			listening.close(&l.gone)
			delete(l.open, s)
		}
	}
}
