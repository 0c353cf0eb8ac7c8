package status

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"sluice/internal/engine"
	"sluice/internal/explain"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

func (s *Server) node(context.Context, *request) (any, error) {
	n := s.settings.About
	n.Now = time.Now()
	n.Started = explain.WallTime(n.Started, n.Now)
	n.Health = s.settings.Health()
	n.Tracking = s.settings.Tracked()
	files := len(s.settings.Files())
	s.settings.Engine.Look(func(v engine.View) {
		n.Zone = v.State.Node.Zone
		for _, ip := range v.State.Node.IPs {
			n.Addresses = append(n.Addresses, ip.String())
		}
		n.Counts.Ports, n.Counts.Problems = len(v.State.Rows), files+v.Resolver.ProblemCount()
		n.Counts.Services, n.Counts.Unreachable, n.Counts.Endpoints = v.Resolver.Counts()
		n.Counts.Pending, n.Counts.Refused = v.DirtyCounts()
		n.Sync = syncOf(v.Sync)
		n.Doubts = explain.DoubtsOf(v.Doubts(), n.Now)
		// Events that no sync has picked up yet are pending too.
		n.Counts.Pending += v.Resolver.Services.Pending() + v.Resolver.Endpoints.Pending()
	})
	n.Verdict = n.Judge()
	return n, nil
}

func syncOf(s engine.SyncStatus) statusapi.Sync {
	out := statusapi.Sync{Done: s.First, Seconds: s.Took.Seconds(), Reason: s.Waiting}
	if !s.Ended.IsZero() {
		last := explain.WallTime(s.Ended, time.Now())
		out.Last = &last
	}
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	return out
}

func (s *Server) problems(_ context.Context, r *request) (any, error) {
	var all []resolve.Problem
	s.settings.Engine.Look(func(v engine.View) { all = v.Resolver.Problems() })
	if namespace := r.query.Get("namespace"); namespace != "" {
		all = slices.DeleteFunc(all, func(p resolve.Problem) bool { return p.Namespace() != "" && p.Namespace() != namespace })
	}
	slices.SortFunc(all, resolve.CompareProblems)
	list := append(s.settings.Files(), problemsOf(all)...)
	some, next, err := page(r, list)
	return statusapi.ProblemList{Items: some, Total: len(list), Continue: next}, err
}

func problemsOf(all []resolve.Problem) []statusapi.Problem {
	out := make([]statusapi.Problem, 0, len(all))
	for _, p := range all {
		out = append(out, statusapi.Problem{Object: p.Object, Field: p.Field, Reason: p.Reason})
	}
	return out
}

// changes returns a page of changes. Its continue token is the number of the last
// change on the page, not an offset, because new changes are added at the front.
func (s *Server) changes(_ context.Context, r *request) (any, error) {
	limit, err := r.limit()
	if err != nil {
		return nil, err
	}
	var before uint64
	if text := r.query.Get("continue"); text != "" {
		if before, err = strconv.ParseUint(text, 10, 64); err != nil || before == 0 {
			return nil, refuse(http.StatusBadRequest, "continue %q: want the value that an earlier response has in continue", text)
		}
	}
	some, total := s.settings.Engine.Changes(before, limit)
	out := statusapi.ChangeList{Items: make([]statusapi.Change, 0, len(some)), Total: int(min(total, engine.ChangesKept))}
	for _, c := range some {
		out.Items = append(out.Items, statusapi.Change{
			Number: c.Number, Time: c.InForce, What: c.What, ServicePort: c.Key.String(), Detail: c.Detail, Seconds: c.Took.Seconds(),
		})
	}
	if n := len(some); n == limit {
		if last := some[n-1].Number; last > 1 && total-last+1 < engine.ChangesKept {
			out.Continue = strconv.FormatUint(last, 10)
		}
	}
	return out, nil
}
