package main

import (
	"context"
	"fmt"
	"time"

	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/trial"
)

// countPeer is whose cost is measured, countRate how many numbers of endpoints
// change per second, and countWindow for how long.
const (
	countPeer   = sluice + "/nftables"
	countRate   = 50
	countWindow = 20 * time.Second
)

// counts measures what a change of the number of endpoints costs the proxy, seen
// from outside: at two sizes, and with session affinity.
func (c *campaign) counts(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	defer c.endCluster()
	fmt.Println("| Services | session affinity | updates | CPU per update | against the first |\n|--:|---|--:|--:|--:|")
	var first time.Duration
	for _, x := range []struct {
		services int
		affinity bool
	}{{500, false}, {8000, false}, {500, true}} {
		if x.affinity {
			c.endCluster() // what is there has none
		}
		each, updates, err := c.count(ctx, figures.Size{Services: x.services, Endpoints: 3}, x.affinity)
		if err != nil {
			return fmt.Errorf("%d Services, affinity %v: %w", x.services, x.affinity, err)
		}
		if first == 0 {
			first = each
		}
		fmt.Printf("| %d | %v | %d | %v | %.2fx |\n", x.services, x.affinity, updates, each.Round(time.Microsecond), float64(each)/float64(first))
	}
	return nil
}

func (c *campaign) count(ctx context.Context, s figures.Size, affinity bool) (time.Duration, int, error) {
	if err := c.open(ctx); err != nil {
		return 0, 0, err
	}
	c.load.Affinity = affinity
	if err := c.load.Grow(ctx, s); err != nil {
		return 0, 0, err
	}
	if err := trial.Calm(ctx, calm); err != nil {
		return 0, 0, err
	}
	b := &trial.Bench{Cluster: c.cluster, Load: c.load, Limits: c.limits, Say: c.say}
	return b.Counts(ctx, trial.Peer{Name: countPeer, Program: c.programs.paths[sluice], Mode: "nftables"}, countRate, countWindow)
}
