package iptables

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
)

// counts is what a Dataplane counts of its own work.
type counts struct {
	mu                        sync.Mutex
	failures, partialFailures int
	rules                     map[ruleCountKey]ruleCount
	unread                    bool // packets could not be read, and that was said
}

type ruleCountKey struct {
	table  string
	family proxy.Family
}

// ruleCount is how many rules are ours, and how many of them were written last.
type ruleCount struct{ owned, written int }

func (c *counts) wrote(table string, f proxy.Family, n ruleCount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rules == nil {
		c.rules = map[ruleCountKey]ruleCount{}
	}
	c.rules[ruleCountKey{table, f}] = n
}

// SyncFailed counts a restore that failed.
func (d *Dataplane) SyncFailed(full bool) {
	d.counts.mu.Lock()
	defer d.counts.mu.Unlock()
	d.counts.failures++
	if !full {
		d.counts.partialFailures++
	}
}

// Metrics returns what only this mode counts.
func (d *Dataplane) Metrics(ctx context.Context) []proxy.Metric {
	c := &d.counts
	failures := func(name, help string, n *int) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Grows: true, Labels: []string{"ip_family"}, Read: func(yield func(float64, ...string)) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, f := range d.families {
				yield(float64(*n), f.Family.String())
			}
		}}
	}
	rules := func(name, help string, of func(ruleCount) int) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Labels: []string{"table", "ip_family"}, Read: func(yield func(float64, ...string)) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for k, n := range c.rules {
				yield(float64(of(n)), k.table, k.family.String())
			}
		}}
	}
	packets := func(name, help string, of func(Packets) uint64) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Grows: true, Read: func(yield func(float64, ...string)) {
			n, err := d.Packets(ctx)
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil && !c.unread {
				klog.FromContext(ctx).Error(err, "Cannot read the packets that rules have matched")
			}
			c.unread = err != nil
			yield(float64(of(n)))
		}}
	}
	return []proxy.Metric{
		failures("sync_proxy_rules_iptables_restore_failures_total", "Restores of iptables that failed", &c.failures),
		failures("sync_proxy_rules_iptables_partial_restore_failures_total", "Partial syncs of iptables that failed", &c.partialFailures),
		rules("sync_proxy_rules_iptables_total", "Rules of ours in iptables", func(n ruleCount) int { return n.owned }),
		rules("sync_proxy_rules_iptables_last", "Rules that the last sync wrote to iptables", func(n ruleCount) int { return n.written }),
		packets("iptables_ct_state_invalid_dropped_packets_total", "Packets dropped because the state of their connection was invalid",
			func(p Packets) uint64 { return p.InvalidDropped }),
		packets("iptables_localhost_nodeports_accepted_packets_total", "Packets accepted at NodePorts of loopback addresses",
			func(p Packets) uint64 { return p.LocalhostAccepted }),
	}
}
