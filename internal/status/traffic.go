package status

import (
	"cmp"
	"context"
	"slices"
	"time"

	"sluice/internal/statusapi"
)

// trafficQuestion is which traffic is asked for.
type trafficQuestion struct {
	namespace string // empty: all
	endpoints bool   // of each, instead of Services
}

// trafficKept is how long somebody who reads page by page finds the same list.
const trafficKept = time.Minute

// trafficAnswer is all that a question is answered with. It is kept while pages of
// it are to come: 30,000 ports have 60, and to list and sort them takes 50 ms.
type trafficAnswer struct {
	trafficQuestion
	list statusapi.TrafficList
	made time.Time
}

// traffic answers with a page of what was counted.
func (s *Server) traffic(ctx context.Context, r *request) (any, error) {
	q := trafficQuestion{r.query.Get("namespace"), r.query.Get("endpoints") == "true"}
	answer := s.traffics.Load()
	if r.query.Get("continue") == "" || answer == nil || answer.trafficQuestion != q || time.Since(answer.made) > trafficKept {
		answer = s.counts(ctx, q)
		s.traffics.Store(answer)
	}
	list := answer.list
	var err error
	if list.Items, list.Continue, err = page(r, list.Items); list.Continue == "" {
		s.traffics.CompareAndSwap(answer, nil)
	}
	return list, err
}

func (s *Server) counts(ctx context.Context, q trafficQuestion) *trafficAnswer {
	all, counted, off := s.settings.Traffic.All(ctx, q.endpoints)
	if q.namespace != "" {
		all = slices.DeleteFunc(all, func(p statusapi.PortTraffic) bool { return p.Namespace != q.namespace })
	}
	slices.SortFunc(all, comparePorts)
	return &trafficAnswer{q, statusapi.TrafficList{Items: all, Counted: counted, Off: off, Total: len(all)}, time.Now()}
}

func comparePorts(a, b statusapi.PortTraffic) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Endpoint, b.Endpoint))
}
