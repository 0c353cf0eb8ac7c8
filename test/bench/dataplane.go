//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

const endpointsPerService = 10

// counter counts operations passed to the kernel.
type counter struct {
	nft.Interface
	elements, others, lists int
}

func (c *counter) Commit(ctx context.Context, b *nft.Batch) error {
	for i := range b.Ops {
		if k := b.Ops[i].Kind; k == nft.AddElement || k == nft.DeleteElement {
			c.elements++
		} else {
			c.others++
		}
	}
	return c.Interface.Commit(ctx, b)
}

func (c *counter) List(ctx context.Context, t nft.Table) (*nft.Listing, error) {
	c.lists++
	return c.Interface.List(ctx, t)
}

func (c *counter) Elements(ctx context.Context, s *nft.Set, f func(nft.Element)) error {
	c.lists++
	return c.Interface.Elements(ctx, s, f)
}

// open opens a dataplane after removing our tables from the kernel.
func open(ctx context.Context) (*nftables.Dataplane, *counter, error) {
	if _, err := nftables.Alone.Cleanup(ctx, nftables.Keep{}); err != nil {
		return nil, nil, err
	}
	conn, err := nft.Open()
	if err != nil {
		return nil, nil, err
	}
	c := &counter{Interface: conn}
	return nftables.Alone.New(c, mode.Settings{MasqueradeBit: 14}), c, nil
}

// service returns ClusterIP Service number i; the index of its first endpoint is first.
func service(i, first int) *proxy.ServicePort {
	sp := &proxy.ServicePort{
		Key: proxy.PortKey{ServicePortName: proxy.ServicePortName{
			Namespace: "default", Name: fmt.Sprintf("svc-%d", i), Port: "http", Protocol: proxy.TCP,
		}},
		Frontends:       []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: address(172<<24|16<<16, i, 80)}},
		UsableSomewhere: true,
	}
	for e := range endpointsPerService {
		at := i*16 + e
		if e == 0 {
			at = first
		}
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: address(10<<24, at, 8080)})
	}
	return sp
}

func address(base uint32, i int, port uint16) netip.AddrPort {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], base+uint32(i))
	return netip.AddrPortFrom(netip.AddrFrom4(b), port)
}

func state(services int) *proxy.State {
	s := proxy.NewState()
	s.Node = &proxy.Node{LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	for i := range services {
		sp := service(i, i*16)
		s.Rows[sp.Key] = sp
	}
	return s
}

// measureApply measures the replacement of one endpoint with two numbers of Services, while changes
// by other processes are watched as in the daemon.
func measureApply(ctx context.Context, r *report) error {
	const small, large, rounds = 1_000, 30_000, 1_000
	medians := map[int]time.Duration{}
	for _, n := range []int{small, large} {
		d, c, stop, err := syncAndWatch(ctx, state(n))
		if err != nil {
			return err
		}
		times, err := replaceEndpoints(ctx, d, c, n, rounds)
		if err != nil {
			return errors.Join(err, stop())
		}
		medians[n] = times[len(times)/2]
		if n == large {
			r.add(fmt.Sprintf("one endpoint replaced at %d x %d: element operations", n, endpointsPerService), fmt.Sprint(c.elements/rounds), "at most 4", c.elements <= 4*rounds)
			r.add("... chains or rules written, lists", fmt.Sprintf("%d, %d", c.others, c.lists), "none", c.others+c.lists == 0)
		}
		r.note(fmt.Sprintf("Apply of it at %d x %d: p50, p99", n, endpointsPerService), fmt.Sprintf("%v, %v", medians[n].Round(time.Microsecond), times[len(times)*99/100].Round(time.Microsecond)))
		c.elements, c.others, c.lists = 0, 0, 0
		if err := proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{New: service(n, n*16)}}}); err != nil {
			return err
		}
		r.add(fmt.Sprintf("one Service of %d endpoints added at %d: operations", endpointsPerService, n), fmt.Sprint(c.elements+c.others), "the same at any size", c.elements+c.others == endpointsPerService+2)
		if err := stop(); err != nil {
			return err
		}
	}
	ratio := float64(medians[large]) / float64(medians[small])
	r.add(fmt.Sprintf("Apply's p50 at %d against %d Services", large, small), fmt.Sprintf("%.2fx", ratio), "within 1.5x", ratio <= 1.5)
	return nil
}

// replaceEndpoints repeatedly replaces one endpoint and returns the sorted times.
func replaceEndpoints(ctx context.Context, d *nftables.Dataplane, c *counter, services, rounds int) ([]time.Duration, error) {
	c.elements, c.others, c.lists = 0, 0, 0
	times := make([]time.Duration, 0, rounds)
	for k := range rounds {
		i := k * 7919 % services
		old, cur := service(i, i*16), service(i, 1<<22+k)
		began := time.Now()
		if err := proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}}); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
		elements := c.elements
		if err := proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: cur, New: old}}}); err != nil {
			return nil, err
		}
		c.elements = elements
	}
	slices.Sort(times)
	return times, nil
}

// measureSync compares the first write of 10,000 Services with a loop that writes as many elements
// and nothing else, and measures a Sync that finds nothing to change.
func measureSync(ctx context.Context, r *report) error {
	const services, rounds = 10_000, 5
	var syncs, floors, again []time.Duration
	elements, written := 0, 0
	s := state(services)
	for range rounds {
		d, c, err := open(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := proxytest.Sync(ctx, d, s); err != nil {
			return err
		}
		syncs = append(syncs, time.Since(began))
		elements = c.elements
		c.elements, c.others = 0, 0
		began = time.Now()
		if err := proxytest.Sync(ctx, d, s); err != nil {
			return err
		}
		again = append(again, time.Since(began))
		written += c.elements + c.others
		if err := d.Close(); err != nil {
			return err
		}
		if _, err := nftables.Alone.Cleanup(ctx, nftables.Keep{}); err != nil {
			return err
		}
		floor, err := writeElements(ctx, elements)
		if err != nil {
			return err
		}
		floors = append(floors, floor)
	}
	sync, floor := median(syncs), median(floors)
	ratio := float64(sync) / float64(floor)
	r.note(fmt.Sprintf("bare loop over netlink: %d elements", elements), floor.Round(time.Millisecond).String())
	r.note(fmt.Sprintf("Sync into an empty kernel at %d x %d", services, endpointsPerService), sync.Round(time.Millisecond).String())
	r.add("Sync against the bare loop", fmt.Sprintf("%.2fx", ratio), "no more than 3x", ratio <= 3)
	r.add("Sync onto a right kernel", fmt.Sprintf("%d operations, %v", written, median(again).Round(time.Millisecond)), "writes nothing", written == 0)
	return nil
}

// writeElements writes elements like those of the endpoint map and nothing else: the lower bound
// for a Sync.
func writeElements(ctx context.Context, elements int) (time.Duration, error) {
	conn, err := nft.Open()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	t := nft.Table{Family: nft.IP, Name: "floor"}
	s := &nft.Set{Table: t, Name: "floor", Key: []nft.Type{nft.IPv4Addr, nft.Proto, nft.Port, nft.Mark}, Data: []nft.Type{nft.IPv4Addr, nft.Port}}
	var b nft.Batch
	b.AddTable(t)
	b.AddSet(s)
	if err := conn.Commit(ctx, &b); err != nil {
		return 0, err
	}
	began := time.Now()
	b.Reset()
	key := make([]byte, 16)
	for i := range elements {
		binary.BigEndian.PutUint32(key, uint32(i))
		b.AddElement(s, nft.Element{Key: string(key), Data: string(key[:8])})
		if len(b.Ops) == 1<<14 || i == elements-1 {
			if err := conn.Commit(ctx, &b); err != nil {
				return 0, err
			}
			b.Reset()
		}
	}
	took := time.Since(began)
	b.DeleteTable(t)
	return took, conn.Commit(ctx, &b)
}

func median(d []time.Duration) time.Duration { return slices.Sorted(slices.Values(d))[len(d)/2] }

// medianRatio returns the median of the ratios of alternate measurements. The load of the machine
// varies, so only neighbours are compared.
func medianRatio(of, against []time.Duration) float64 {
	var ratios []float64
	for i := range of {
		ratios = append(ratios, float64(of[i])/float64(against[i]))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}
