package app

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/engine"
	"sluice/internal/proxy"
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

// refusals makes known which service ports the kernel does not take: by a
// metric, on /statusz and by events of their Services.
type refusals struct {
	families []proxy.Family // those that are served
	gauge    func(proxy.Family, int)
	send     func(refusalEvent)
	wake     chan struct{}

	mu      sync.Mutex
	rows    map[proxy.PortKey]string
	counts  [len(proxy.Families)]int
	changed []types.NamespacedName // Services to look at, the longest waiting first
	waiting map[types.NamespacedName]bool
	listed  []zpages.SetAside // of the rows; nil: to be made anew
}

// refusalEvent is something to tell the cluster.
type refusalEvent struct {
	service types.NamespacedName // zero: it is about the Node
	kind    string               // v1.EventTypeWarning, or EventTypeNormal when all is well again
	note    string
}

func newRefusals(families []proxy.Family, gauge func(proxy.Family, int), send func(refusalEvent)) *refusals {
	r := &refusals{
		families: families, gauge: gauge, send: send, wake: make(chan struct{}, 1),
		rows: map[proxy.PortKey]string{}, waiting: map[types.NamespacedName]bool{},
	}
	for _, f := range families {
		gauge(f, 0)
	}
	return r
}

// Applied does nothing: what is in force is no refusal.
func (*refusals) Applied(context.Context, *proxy.State, *proxy.Delta) {}

// Refused takes what changed.
func (r *refusals) Refused(_ context.Context, changes []engine.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		_, was := r.rows[c.Key]
		switch {
		case c.Reason != "":
			r.rows[c.Key] = c.Reason
			if !was {
				r.counts[c.Key.Family]++
			}
		case was:
			delete(r.rows, c.Key)
			r.counts[c.Key.Family]--
		}
		name := types.NamespacedName{Namespace: c.Key.Namespace, Name: c.Key.Name}
		if !r.waiting[name] {
			r.waiting[name] = true
			r.changed = append(r.changed, name)
		}
	}
	r.listed = nil
	for _, f := range r.families {
		r.gauge(f, r.counts[f])
	}
	select {
	case r.wake <- struct{}{}:
	default: // it wakes already
	}
}

// list returns the first service ports that are refused, and how many are.
func (r *refusals) list() (some []zpages.SetAside, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listed == nil {
		keys := slices.SortedFunc(maps.Keys(r.rows), proxy.ComparePortKeys)
		for _, k := range keys[:min(len(keys), refusalsListed)] {
			r.listed = append(r.listed, zpages.SetAside{ServicePort: k.String(), Reason: r.rows[k]})
		}
	}
	return r.listed, len(r.rows)
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
		if !pause(ctx, refusalCalm+rand.N(refusalSpread)) {
			return nil
		}
		news := r.news(reported)
		if len(news) > int(limit.Tokens()) {
			news = []refusalEvent{r.summary(len(news))}
		}
		for _, e := range news {
			if limit.Wait(ctx) != nil {
				return nil
			}
			r.send(e)
		}
	}
}

// pause waits, and reports whether it was for the whole time.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// news returns what is to be said of the Services that changed, and notes it as
// reported.
func (r *refusals) news(reported map[types.NamespacedName]string) []refusalEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	notes := map[types.NamespacedName][]string{}
	for _, k := range slices.SortedFunc(maps.Keys(r.rows), proxy.ComparePortKeys) {
		if name := (types.NamespacedName{Namespace: k.Namespace, Name: k.Name}); r.waiting[name] {
			notes[name] = append(notes[name], fmt.Sprintf("%s/%v/%v: %s", k.Port, k.Protocol, k.Family, r.rows[k]))
		}
	}
	var out []refusalEvent
	for _, name := range r.changed {
		note := strings.Join(notes[name], "; ")
		switch {
		case note == reported[name]:
			continue
		case note == "":
			delete(reported, name)
		default:
			reported[name] = note
		}
		kind := v1.EventTypeNormal
		if note != "" {
			kind = v1.EventTypeWarning
		}
		out = append(out, refusalEvent{name, kind, note})
	}
	r.changed = nil
	clear(r.waiting)
	return out
}

// summary is one event for many.
func (r *refusals) summary(services int) refusalEvent {
	some, all := r.list()
	e := refusalEvent{kind: v1.EventTypeNormal, note: "no service port is refused any more"}
	if all > 0 {
		e.kind = v1.EventTypeWarning
		e.note = fmt.Sprintf("%d service ports are refused after changes of %d Services, /statusz names them; the first is %s: %s",
			all, services, some[0].ServicePort, some[0].Reason)
	}
	return e
}
