package app

import (
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
