//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// serviceKind is a kind of Service whose number of endpoints changes.
type serviceKind struct {
	name      string
	customize func(sp *proxy.ServicePort, i int)
}

var kinds = []serviceKind{
	{"plain", func(*proxy.ServicePort, int) {}},
	{"externalTrafficPolicy Local", func(sp *proxy.ServicePort, i int) {
		sp.Frontends = append(sp.Frontends,
			proxy.Frontend{Kind: proxy.LoadBalancer, Addr: address(192<<24|168<<16, i, 80)},
			proxy.Frontend{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(i+1))})
		sp.External, sp.Local = proxy.ScopeLocal, sp.Cluster
	}},
	{"session affinity", func(sp *proxy.ServicePort, _ int) { sp.Affinity = 3 * time.Hour }},
}

// service returns Service number i of the kind, with n endpoints.
func (k serviceKind) service(i, n int) *proxy.ServicePort {
	sp := service(i, i*16)
	sp.Cluster = sp.Cluster[:min(n, endpointsPerService)]
	for e := len(sp.Cluster); e < n; e++ {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: address(10<<24, 1<<22+e, 8080)})
	}
	k.customize(sp, i)
	return sp
}

// measureCounts measures a change of the number of endpoints by one, as in rolling updates, with
// two numbers of Services; and a change to a number that no Service has had.
func measureCounts(ctx context.Context, r *report) error {
	const small, large = 1_000, 30_000
	for _, k := range kinds {
		var counts, news []time.Duration
		for _, n := range []int{small, large} {
			m, unseen, err := measureCount(ctx, k, n)
			if err != nil {
				return err
			}
			counts, news = append(counts, m), append(news, unseen)
		}
		ratio := float64(counts[1]) / float64(counts[0])
		r.add(fmt.Sprintf("3 endpoints to 2 and back, %s: p50 at %d and %d Services", k.name, small, large),
			fmt.Sprintf("%v and %v, %.2fx", counts[0].Round(time.Microsecond), counts[1].Round(time.Microsecond), ratio),
			"within 1.5x", ratio <= 1.5)
		r.add(fmt.Sprintf("3 endpoints to a number not seen before, %s: p50 at %d and %d Services", k.name, small, large),
			fmt.Sprintf("%v and %v", news[0].Round(time.Microsecond), news[1].Round(time.Microsecond)),
			"at most 1 ms", max(news[0], news[1]) <= time.Millisecond)
	}
	return nil
}

func measureCount(ctx context.Context, k serviceKind, services int) (known, unseen time.Duration, err error) {
	s := state(0)
	for i := range services {
		sp := k.service(i, 3)
		s.Rows[sp.Key] = sp
	}
	d, _, stop, err := syncAndWatch(ctx, s)
	if err != nil {
		return 0, 0, err
	}
	apply := func(old, cur *proxy.ServicePort) time.Duration {
		began := time.Now()
		err = errors.Join(err, proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}}))
		return time.Since(began)
	}
	var times, news []time.Duration
	for j := range 500 {
		i := j * 7919 % services
		three, two := k.service(i, 3), k.service(i, 2)
		times = append(times, apply(three, two), apply(two, three))
	}
	const most = 60
	for n := 4; n <= most; n++ {
		three, more := k.service(n, 3), k.service(n, n)
		news = append(news, apply(three, more))
		apply(more, three)
	}
	return median(times), median(news), errors.Join(err, stop())
}

// syncAndWatch returns a dataplane that has written a state and watches for changes by other
// processes, as in the daemon.
func syncAndWatch(ctx context.Context, s *proxy.State) (*nftables.Dataplane, *counter, func() error, error) {
	d, c, err := open(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := proxytest.Sync(ctx, d, s); err != nil {
		return nil, nil, nil, err
	}
	watch, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- d.Watch(watch, func() {}, func(string) {}) }()
	return d, c, func() error {
		cancel()
		return errors.Join(<-ended, d.Close())
	}, nil
}

// measureLarge measures the replacement of one of very many endpoints.
func measureLarge(ctx context.Context, r *report) error {
	const endpoints, rounds = 5_000, 200
	for _, affinity := range []time.Duration{0, 3 * time.Hour} {
		large := func(first int) *proxy.ServicePort {
			sp := service(0, first)
			sp.Affinity = affinity
			for e := len(sp.Cluster); e < endpoints; e++ {
				sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: address(10<<24, 1<<20+e, 8080)})
			}
			return sp
		}
		s := state(0)
		last := large(0)
		s.Rows[last.Key] = last
		d, _, stop, err := syncAndWatch(ctx, s)
		if err != nil {
			return err
		}
		var times []time.Duration
		for k := range rounds {
			next := large(1<<22 + k)
			began := time.Now()
			if err := proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: last, New: next}}}); err != nil {
				return errors.Join(err, stop())
			}
			times = append(times, time.Since(began))
			last = next
		}
		if err := stop(); err != nil {
			return err
		}
		slices.Sort(times)
		what := fmt.Sprintf("one endpoint of %d replaced", endpoints)
		if affinity > 0 {
			what += ", session affinity"
		}
		p50 := times[len(times)/2]
		r.add(what+": p50, p99", fmt.Sprintf("%v, %v", p50.Round(time.Microsecond), times[len(times)*99/100].Round(time.Microsecond)),
			"at most 1 ms", p50 <= time.Millisecond)
	}
	return nil
}
