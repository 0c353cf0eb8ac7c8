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

// newStatusServer returns what answers about this daemon.
func (s *ProxyServer) newStatusServer(e *engine.Engine) *status.Server {
	about := statusapi.Node{
		Name: s.plan.node, Version: s.plan.options.version.reported(), Mode: string(s.plan.config.Mode),
		Source: s.plan.from.String(), Started: time.Now(),
	}
	for _, f := range s.families {
		about.Families = append(about.Families, f.String())
	}
	return status.New(status.Settings{
		Engine: e, About: about, Health: s.healthStatus, Tracked: tracked, Traffic: statusTraffic{s.traffic, s.uncounted}, Explain: s.explainer(e),
		Page: page.Handler(), Files: s.fileProblems,
	})
}

// fileProblems returns what is wrong with the files that objects come from.
func (s *ProxyServer) fileProblems() (out []statusapi.Problem) {
	for _, p := range ptr.Deref(s.files.Load(), nil) {
		out = append(out, statusapi.Problem{Object: p.Where(), Field: p.Field, Reason: p.Reason})
	}
	return out
}

// healthStatus returns what the health server would say.
func (s *ProxyServer) healthStatus() statusapi.Health {
	h := statusapi.Health{Live: s.health.Healthy()}
	h.Healthy = h.Live && s.health.Eligible()
	switch {
	case !h.Live:
		h.Reason = "no sync has gone through for too long, or none at all"
	case !h.Healthy:
		h.Reason = "the node is about to go, or there is no Node: load balancers are to leave it out"
	}
	return h
}

// tracked returns how full the kernel's table of connections is; nil if there is
// none.
func tracked() *statusapi.Tracking {
	entries, err := sysctl.ReadInt(sysctl.Kernel{}, "net/netfilter/nf_conntrack_count")
	limit, err2 := sysctl.ReadInt(sysctl.Kernel{}, "net/netfilter/nf_conntrack_max")
	if err != nil || err2 != nil {
		return nil
	}
	return &statusapi.Tracking{Entries: entries, Limit: limit}
}
