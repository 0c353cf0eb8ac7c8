package status

import (
	"cmp"
	"context"
	"slices"
	"time"

	"sluice/internal/statusapi"
)

// trafficQuery selects traffic.
type trafficQuery struct {
	namespace string // empty: all
	endpoints bool   // of each endpoint, instead of each port
}

// snapshotAge is how old a snapshot may be that serves further pages.
const snapshotAge = time.Minute

// trafficSnapshot is the complete response to a query. The server keeps the last one
// until its last page is read: 30,000 ports have 60 pages, and listing and sorting
// them takes 50 ms.
type trafficSnapshot struct {
	trafficQuery
	list statusapi.TrafficList
	made time.Time
}

// traffic returns a page of traffic counters.
func (s *Server) traffic(ctx context.Context, r *request) (any, error) {
	snapshot := s.trafficSnapshot(ctx, r, trafficQuery{r.query.Get("namespace"), r.query.Get("endpoints") == "true"})
	list := snapshot.list
	var err error
	if list.Items, list.Continue, err = page(r, list.Items); list.Continue == "" {
		s.lastTraffic.CompareAndSwap(snapshot, nil)
	}
	return list, err
}

// trafficSnapshot returns the traffic for a request of a page. Pages after the first
// get the same snapshot if possible.
func (s *Server) trafficSnapshot(ctx context.Context, r *request, q trafficQuery) *trafficSnapshot {
	snapshot := s.lastTraffic.Load()
	if r.query.Get("continue") == "" || snapshot == nil || snapshot.trafficQuery != q || time.Since(snapshot.made) > snapshotAge {
		snapshot = s.readTraffic(ctx, q)
		s.lastTraffic.Store(snapshot)
	}
	return snapshot
}

func (s *Server) readTraffic(ctx context.Context, q trafficQuery) *trafficSnapshot {
	all, counted, off := s.settings.Traffic.All(ctx, q.endpoints)
	if q.namespace != "" {
		all = slices.DeleteFunc(all, func(p statusapi.PortTraffic) bool { return p.Namespace != q.namespace })
	}
	slices.SortFunc(all, comparePorts)
	return &trafficSnapshot{q, statusapi.TrafficList{Items: all, Counted: counted, Off: off, Total: len(all)}, time.Now()}
}

func comparePorts(a, b statusapi.PortTraffic) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Endpoint, b.Endpoint))
}
