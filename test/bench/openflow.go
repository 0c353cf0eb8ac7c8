//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy/proxytest"
)

// measureOpenFlow measures a round trip of an established flow, alternately with our rules and
// without them. In both cases the kernel tracks and translates connections.
func measureOpenFlow(ctx context.Context, r *report) error {
	const rounds, trips = 40, 5_000
	remove, err := enableTracking(ctx)
	if err != nil {
		return err
	}
	flow, err := openFlow()
	if err != nil {
		return err
	}
	defer flow.close()
	var with, without []time.Duration
	for range rounds {
		d, _, err := open(ctx) // removes our rules
		if err != nil {
			return err
		}
		none, err := flow.roundTrips(trips)
		if err != nil {
			return err
		}
		if err := proxytest.Sync(ctx, d, state(1000)); err != nil {
			return err
		}
		ours, err := flow.roundTrips(trips)
		if err != nil {
			return err
		}
		with, without = append(with, ours), append(without, none)
		if err := d.Close(); err != nil {
			return err
		}
	}
	ratio := medianRatio(with, without)
	r.add("round trip of an open flow over loopback, with our rules and without", fmt.Sprintf("%v and %v, %.3fx", median(with), median(without), ratio),
		"within 1.05x", ratio <= 1.05)
	return remove()
}

// enableTracking makes the kernel track and translate connections, independently of our rules.
func enableTracking(ctx context.Context) (remove func() error, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	t := nft.Table{Family: nft.IP, Name: "floor"}
	var b nft.Batch
	b.AddTable(t)
	b.AddChain(t, &nft.Chain{Name: "nat", Hook: &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100}})
	b.AddRule(t, "nat", &nft.Rule{Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: nft.Register(0)}}})
	return func() error {
		defer conn.Close()
		b.Reset()
		b.DeleteTable(t)
		return conn.Commit(ctx, &b)
	}, conn.Commit(ctx, &b)
}

// socketPair is two UDP sockets that are connected to each other.
type socketPair [2]int

func openFlow() (p socketPair, err error) {
	for i, port := range []int{19_001, 19_002} {
		if p[i], err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return p, fmt.Errorf("open a socket: %w", err)
		}
		if err := unix.Bind(p[i], &unix.SockaddrInet4{Port: port, Addr: [4]byte{10, 0, 0, 1}}); err != nil {
			return p, fmt.Errorf("bind to port %d: %w", port, err)
		}
	}
	for i, port := range []int{19_002, 19_001} {
		if err := unix.Connect(p[i], &unix.SockaddrInet4{Port: port, Addr: [4]byte{10, 0, 0, 1}}); err != nil {
			return p, fmt.Errorf("connect to port %d: %w", port, err)
		}
	}
	return p, nil
}

func (p socketPair) close() {
	for _, fd := range p {
		_ = unix.Close(fd) // nothing is buffered
	}
}

// roundTrips returns the time of one of n round trips.
func (p socketPair) roundTrips(n int) (time.Duration, error) {
	b := make([]byte, 1)
	began := time.Now()
	for range n {
		for from, fd := range p {
			if _, err := unix.Write(fd, b); err != nil {
				return 0, fmt.Errorf("send: %w", err)
			}
			if _, err := unix.Read(p[1-from], b); err != nil {
				return 0, fmt.Errorf("receive: %w", err)
			}
		}
	}
	return time.Since(began) / time.Duration(n), nil
}
