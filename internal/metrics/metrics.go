package metrics

import (
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	k8s "k8s.io/component-base/metrics"

	"sluice/internal/proxy"
)

type Settings struct {
	Registry k8s.KubeRegistry
	Families []proxy.Family // those that are served
	Own      []proxy.Metric // what the mode counts by itself
	Ours     []proxy.Metric // what no kube-proxy has
}

// Metrics holds every metric of the proxy. Its methods may be called by any
// goroutine.
//
// EndpointSliceSeen, ServiceSeen and Began must be called in the order in which
// the resolver sees the events and their consumption, that is under the lock
// that guards the resolver. Otherwise a change could be counted with a sync that
// it was too late for.
type Metrics struct {
	set
	families []proxy.Family

	start time.Time // what began before is not for this process to answer

	mu       sync.Mutex
	triggers []trigger // those whose changes are not in force, however many syncs failed
	taken    int       // how many of them the sync under way puts in force, or a later one
	slices   waiting
	services waiting
	began    time.Time
	without  [2][len(proxy.Families)]int // rows without endpoints here, by policy
}

// maxTriggers bounds what is remembered while no sync succeeds. By then every
// sample would say the same: far too long.
const maxTriggers = 1 << 16

// trigger is when a change of endpoints began, far away from here.
type trigger struct {
	family string
	at     time.Time
}

// The traffic policies, as the label spells them.
const internal, external = 0, 1

var policies = [...]string{internal: "internal", external: "external"}

// waiting counts objects whose changes are not in force.
type waiting struct {
	pending int // no sync has begun since they came
	taken   int // the sync under way puts them in force, or a later one
}

func (w *waiting) take() { *w = waiting{taken: w.pending + w.taken} }

// New makes and registers the metrics of a process that starts now. They can be
// registered only once in one registry.
func New(s Settings) (*Metrics, error) {
	r := registrar{Settings: s}
	m := &Metrics{families: s.Families, set: newSet(&r), start: time.Now()}
	r.own(subsystem, s.Own)
	r.own("sluice", s.Ours)
	return m, r.err
}

// ServiceSeen takes an event of a Service, with how many Services now have
// changes that no sync has begun to put in force.
func (m *Metrics) ServiceSeen(pending int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serviceChanges.Inc()
	m.services.pending = pending
	m.showPending()
}

// EndpointSliceSeen takes an event: old is nil for an addition, cur for a
// deletion. Pending is how many slices now have changes that no sync has begun
// to put in force; if none has, the event came to nothing.
func (m *Metrics) EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endpointChanges.Inc()
	m.slices.pending = pending
	if pending > 0 {
		m.note(old, cur)
	}
	m.showPending()
}

// note takes the trigger that an event brings, if it brings one. A deleted
// slice still names the trigger of its last change, and so does every event
// that is not a change of endpoints.
func (m *Metrics) note(old, cur *discoveryv1.EndpointSlice) {
	if cur == nil {
		return
	}
	text, ok := cur.Annotations[v1.EndpointsLastChangeTriggerTime]
	if !ok || old != nil && old.Annotations[v1.EndpointsLastChangeTriggerTime] == text {
		return
	}
	family := string(cur.AddressType)
	served := slices.ContainsFunc(m.families, func(f proxy.Family) bool { return f.String() == family })
	at, err := time.Parse(time.RFC3339Nano, text)
	if served && err == nil && at.After(m.start) && len(m.triggers) < maxTriggers {
		m.triggers = append(m.triggers, trigger{family, at})
	}
}

func (m *Metrics) showPending() {
	m.servicesPending.Set(float64(m.services.pending + m.services.taken))
	m.endpointsPending.Set(float64(m.slices.pending + m.slices.taken))
}

func (m *Metrics) Queued() {
	for _, f := range m.families {
		m.syncQueued.WithLabelValues(f.String()).SetToCurrentTime()
	}
}

// Began says that a sync begins that includes every event seen before.
func (m *Metrics) Began() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.began = time.Now()
	m.taken = len(m.triggers)
	m.slices.take()
	m.services.take()
}

func (m *Metrics) Done(full bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	took, kind := time.Since(m.began).Seconds(), m.syncPartial
	if full {
		kind = m.syncFull
	}
	for _, f := range m.families {
		m.sync.WithLabelValues(f.String()).Observe(took)
		kind.WithLabelValues(f.String()).Observe(took)
		if err == nil {
			m.syncLast.WithLabelValues(f.String()).SetToCurrentTime()
		}
	}
	if err != nil {
		return
	}
	for _, t := range m.triggers[:m.taken] {
		// Clocks differ between machines: a change from the future has taken no time.
		m.programming.WithLabelValues(t.family).Observe(max(time.Since(t.at), 0).Seconds())
	}
	m.triggers, m.taken = append([]trigger(nil), m.triggers[m.taken:]...), 0 // none of a storm's memory stays
	m.slices.taken, m.services.taken = 0, 0
	m.showPending()
}

// Applied takes what a sync changed in the kernel. Its cost is that of the step.
func (m *Metrics) Applied(d *proxy.Delta) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range d.Removes {
		m.count(r, -1)
	}
	for _, u := range d.Upserts {
		m.count(u.Old, -1)
		m.count(u.New, 1)
	}
	for p, name := range policies {
		for _, f := range m.families {
			m.noLocalEndpoints.WithLabelValues(name, f.String()).Set(float64(m.without[p][f]))
		}
	}
}

// count adds a row, or with -1 takes it away. It may be nil.
func (m *Metrics) count(sp *proxy.ServicePort, by int) {
	if sp == nil || len(sp.Local) > 0 || !sp.UsableSomewhere {
		return
	}
	if sp.Internal == proxy.ScopeLocal {
		m.without[internal][sp.Key.Family] += by
	}
	outside := func(f proxy.Frontend) bool { return f.Kind != proxy.ClusterIP }
	if sp.External == proxy.ScopeLocal && slices.ContainsFunc(sp.Frontends, outside) {
		m.without[external][sp.Key.Family] += by
	}
}

func (m *Metrics) Refused(f proxy.Family, n int) {
	m.refused.WithLabelValues(f.String()).Set(float64(n))
}

func (m *Metrics) Repairing()       { m.repairs.Inc() }
func (m *Metrics) Problems(n int)   { m.problems.Set(float64(n)) }
func (m *Metrics) Healthz(code int) { m.healthz.WithLabelValues(strconv.Itoa(code)).Inc() }
func (m *Metrics) Livez(code int)   { m.livez.WithLabelValues(strconv.Itoa(code)).Inc() }

func (m *Metrics) ConntrackReconciled(f proxy.Family, took time.Duration, deleted int) {
	m.conntrack.WithLabelValues(f.String()).Observe(took.Seconds())
	m.conntrackDeleted.WithLabelValues(f.String()).Add(float64(deleted))
}
