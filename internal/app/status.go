package app

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	"sluice/internal/engine"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/status"
	"sluice/internal/status/page"
	"sluice/internal/statusapi"
)

// newStatusServer returns the server of the status API.
func (s *ProxyServer) newStatusServer(e *engine.Engine) *status.Server {
	about := statusapi.Node{
		Name: s.plan.node, Version: s.plan.options.version.reported(), Mode: string(s.plan.config.Mode),
		Source: s.plan.source.String(), Started: time.Now(),
	}
	for _, f := range s.families {
		about.Families = append(about.Families, f.String())
	}
	return status.New(status.Settings{
		Engine: e, About: about, Health: s.healthStatus, Tracked: conntrackUsage, Traffic: statusTraffic{s.traffic, s.trafficOff}, Explain: s.explainer(e),
		Page: page.Handler(), Files: s.fileProblems,
	})
}

// fileProblems returns the problems of manifest files.
func (s *ProxyServer) fileProblems() (out []statusapi.Problem) {
	for _, p := range ptr.Deref(s.files.Load(), nil) {
		out = append(out, statusapi.Problem{Object: p.Where(), Field: p.Field, Reason: p.Reason})
	}
	return out
}

// healthStatus returns what the health server reports.
func (s *ProxyServer) healthStatus() statusapi.Health {
	h := statusapi.Health{Live: s.health.Healthy()}
	h.Healthy = h.Live && s.health.Eligible()
	switch {
	case !h.Live:
		h.Reason = "no sync has succeeded for too long, or none at all"
	case !h.Healthy:
		h.Reason = "the node is being removed, or there is no Node object: load balancers shall not use it"
	}
	return h
}

const (
	// conntrackInterval is how often the size of the connection tracking table is read.
	conntrackInterval = 5 * time.Second

	// conntrackNearlyFull is how many of a hundred entries may be in use without a doubt.
	conntrackNearlyFull = 90
)

// watchConntrack reads until ctx ends how full the connection tracking table is: without
// room, the kernel drops the first packets of connections.
func watchConntrack(ctx context.Context, usage func() *statusapi.Tracking, doubts *engine.Doubts) {
	for ctx.Err() == nil {
		u := usage()
		full := u != nil && u.Limit > 0 && u.Entries >= u.Limit
		nearly := u != nil && u.Limit > 0 && !full && u.Entries*100 > u.Limit*conntrackNearlyFull
		for kind, is := range map[engine.DoubtKind]bool{engine.ConntrackFull: full, engine.ConntrackNearlyFull: nearly} {
			if !is {
				doubts.Clear(kind, "")
				continue
			}
			doubts.Set(engine.Doubt{
				Kind: kind, Reason: fmt.Sprintf("connection tracking has %d of at most %d entries; beyond that, the kernel drops new connections", u.Entries, u.Limit),
				Next: "raise the limit (--conntrack-max-per-core), or end connections: sluice top --sort-by active",
			})
		}
		select {
		case <-ctx.Done():
		case <-time.After(conntrackInterval):
		}
	}
}

// conntrackUsage returns how full the connection tracking table is, nil if it cannot
// be read.
func conntrackUsage() *statusapi.Tracking {
	entries, err := sysctl.ReadInt(sysctl.Kernel{}, "net/netfilter/nf_conntrack_count")
	limit, err2 := sysctl.ReadInt(sysctl.Kernel{}, "net/netfilter/nf_conntrack_max")
	if err != nil || err2 != nil {
		return nil
	}
	return &statusapi.Tracking{Entries: entries, Limit: limit}
}
