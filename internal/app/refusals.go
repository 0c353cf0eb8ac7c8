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

// How refused Services become events. All nodes may refuse the same Service and
// report it, so each waits for a random time and limits its rate.
const (
	refusalDelay   = 10 * time.Second // a shorter refusal is not worth an event
	refusalSpread  = 20 * time.Second // maximum of the random time in addition
	refusalEvery   = 30 * time.Second // average time between events
	refusalBurst   = 10               // events at once; more are replaced by one event about the Node
	refusalsListed = 100              // maximum number of service ports that /statusz lists
)

// refusals reports which service ports the kernel refuses: on /statusz, and by
// events about their Services.
type refusals struct {
	rows func() []engine.RowStatus // returns the rows that are refused now
	send func(refusalEvent)
	wake chan struct{} // has an element if rows may have changed
}

// refusalEvent is an event about refused service ports.
type refusalEvent struct {
	service types.NamespacedName // zero: the event is about the Node
	kind    string               // v1.EventTypeWarning, or EventTypeNormal if all ports are accepted again
	note    string
}

func newRefusals(rows func() []engine.RowStatus, send func(refusalEvent)) *refusals {
	return &refusals{rows: rows, send: send, wake: make(chan struct{}, 1)}
}

// changed notifies Run that the refused rows, or the reasons, have changed.
func (r *refusals) changed() {
	select {
	case r.wake <- struct{}{}:
	default: // Run is already notified
	}
}

// list returns the first refusalsListed refused service ports, and the number of all.
func (r *refusals) list() (first []zpages.SetAside, total int) {
	rows := r.rows()
	for _, row := range rows[:min(len(rows), refusalsListed)] {
		first = append(first, zpages.SetAside{ServicePort: row.Key.String(), Reason: row.Refused})
	}
	return first, len(rows)
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
		case <-time.After(refusalDelay + rand.N(refusalSpread)):
		}
		rows := r.rows()
		events := changedEvents(reported, rows)
		if len(events) > int(limit.Tokens()) {
			events = []refusalEvent{summaryEvent(rows, len(events))}
		}
		for _, e := range events {
			if limit.Wait(ctx) != nil {
				return nil
			}
			r.send(e)
		}
	}
}

// changedEvents returns events for the Services whose refused ports are not those
// that were reported, and updates reported.
func changedEvents(reported map[types.NamespacedName]string, rows []engine.RowStatus) []refusalEvent {
	notes := map[types.NamespacedName]string{}
	var names []types.NamespacedName // in the order of the rows; last, those that are no longer refused
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

// summaryEvent returns one event about the Node instead of many about Services.
func summaryEvent(rows []engine.RowStatus, services int) refusalEvent {
	if len(rows) == 0 {
		return refusalEvent{kind: v1.EventTypeNormal, note: "all service ports are accepted again"}
	}
	return refusalEvent{kind: v1.EventTypeWarning, note: fmt.Sprintf(
		"%d service ports are refused after changes of %d Services, /statusz lists them; the first is %v: %s",
		len(rows), services, rows[0].Key, rows[0].Refused)}
}

// reportProblems records events about Services that request a load-balancing method
// which the mode does not support, or an address which the configuration does not
// allow. The log has all problems. All nodes report the same, so each waits for a
// random time and limits its rate.
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
