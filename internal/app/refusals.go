package app

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/apiobject"
	"sluice/internal/engine"
	"sluice/internal/resolve"
	"sluice/internal/zpages"
)

// How refused Services become events. What every node refuses is reported by
// every node, so each waits a while, differently long, and says little.
const (
	refusalCalm    = 10 * time.Second // a refusal that is over by then is not worth an event
	refusalSpread  = 20 * time.Second // how differently long nodes wait
	refusalEvery   = 30 * time.Second // from one event to the next, in the long run
	refusalBurst   = 10               // events at once; if there is more to say, one of the Node says it
	refusalsListed = 100              // service ports that /statusz names
)

// refusals makes known which service ports the kernel refuses: on /statusz, and
// by events of their Services.
type refusals struct {
	rows func() []engine.RowStatus // those that are refused now
	send func(refusalEvent)
	wake chan struct{} // has a token when they may have changed
}

// refusalEvent is something to tell the cluster.
type refusalEvent struct {
	service types.NamespacedName // zero: it is about the Node
	kind    string               // v1.EventTypeWarning, or EventTypeNormal when all is well again
	note    string
}

func newRefusals(rows func() []engine.RowStatus, send func(refusalEvent)) *refusals {
	return &refusals{rows: rows, send: send, wake: make(chan struct{}, 1)}
}

// changed says that other rows are refused, or for other reasons.
func (r *refusals) changed() {
	select {
	case r.wake <- struct{}{}:
	default: // it wakes already
	}
}

// list returns the first service ports that are refused, and how many are.
func (r *refusals) list() (some []zpages.SetAside, all int) {
	rows := r.rows()
	for _, row := range rows[:min(len(rows), refusalsListed)] {
		some = append(some, zpages.SetAside{ServicePort: row.Key.String(), Reason: row.Refused})
	}
	return some, len(rows)
}

// Run sends events until ctx ends.
func (r *refusals) Run(ctx context.Context) error {
	limit := rate.NewLimiter(rate.Every(refusalEvery), refusalBurst)
	reported := map[types.NamespacedName]string{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(refusalCalm + rand.N(refusalSpread)):
		}
		rows := r.rows()
		events := changedNotes(reported, rows)
		if len(events) > int(limit.Tokens()) {
			events = []refusalEvent{summary(rows, len(events))}
		}
		for _, e := range events {
			if limit.Wait(ctx) != nil {
				return nil
			}
			r.send(e)
		}
	}
}

// changedNotes returns what is to be said of Services of which something else
// was reported, and notes it as reported.
func changedNotes(reported map[types.NamespacedName]string, rows []engine.RowStatus) []refusalEvent {
	notes := map[types.NamespacedName]string{}
	var names []types.NamespacedName // in the order of the rows, and then those of which nothing is refused any more
	for _, row := range rows {
		k := row.Key
		name := types.NamespacedName{Namespace: k.Namespace, Name: k.Name}
		if notes[name] == "" {
			names = append(names, name)
		} else {
			notes[name] += "; "
		}
		notes[name] += fmt.Sprintf("%s/%v/%v: %s", k.Port, k.Protocol, k.Family, row.Refused)
	}
	for name := range reported {
		if notes[name] == "" {
			names = append(names, name)
		}
	}
	var events []refusalEvent
	for _, name := range names {
		note := notes[name]
		if note == reported[name] {
			continue
		}
		reported[name] = note
		kind := v1.EventTypeWarning
		if note == "" {
			kind = v1.EventTypeNormal
			delete(reported, name)
		}
		events = append(events, refusalEvent{name, kind, note})
	}
	return events
}

// summary is one event for many.
func summary(rows []engine.RowStatus, services int) refusalEvent {
	if len(rows) == 0 {
		return refusalEvent{kind: v1.EventTypeNormal, note: "all service ports are accepted again"}
	}
	return refusalEvent{kind: v1.EventTypeWarning, note: fmt.Sprintf(
		"%d service ports are refused after changes of %d Services, /statusz names them; the first is %v: %s",
		len(rows), services, rows[0].Key, rows[0].Refused)}
}

// reportProblems tells the cluster of Services that ask for what the mode cannot
// do, or the configuration does not allow. The log has all problems. Every node has
// the same to say, so each waits a while, differently long, and says little.
func (s *ProxyServer) reportProblems(found []resolve.Problem) {
	for _, p := range found {
		name, ok := p.Service()
		why := reasonBalancing
		if p.Denied.IsValid() {
			why = reasonNotAllowed
		} else if p.Field != apiobject.AnnotationField(apiobject.LoadBalancing) {
			continue
		}
		if !ok || !s.problemEvents.Allow() {
			continue
		}
		time.AfterFunc(rand.N(refusalSpread), func() {
			s.events.record(serviceReference(name), v1.EventTypeWarning, why,
				fmt.Sprintf("node %s: %s: %s", s.plan.node, p.Field, p.Reason))
		})
	}
}
