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

// Settings are the parameters of [New].
type Settings struct {
	Registry k8s.KubeRegistry
	Families []proxy.Family // the families that are served
	Mode     []proxy.Metric // metrics of the dataplane, named kubeproxy_...
	Extra    []proxy.Metric // metrics that kube-proxy does not have, named sluice_...
}

// Metrics holds every metric of the proxy. Its methods may be called by any
// goroutine.
//
// EndpointSliceSeen, ServiceSeen and Began must be called under the lock that
// guards the resolver, so that their order is that in which the resolver receives
// events and consumes them. Otherwise a change could be attributed to a sync that
// does not include it.
type Metrics struct {
	set
	families []proxy.Family

	start time.Time // older triggers are ignored: this process is not the cause of their latency

	mu       sync.Mutex
	triggers []trigger // of changes that no successful sync has put in force
	taken    int       // how many of them, from the front, are included in the current sync or in one that failed
	slices   pendingChanges
	services pendingChanges
	began    time.Time
	noLocal  [2][len(proxy.Families)]int // rows without local endpoints, by traffic policy
}

// maxTriggers bounds the memory that triggers take while no sync succeeds. More
// samples would add nothing: all are far too long.
const maxTriggers = 1 << 16

// trigger is the time of the change in the cluster, as of a Pod, that caused an
// EndpointSlice to change.
type trigger struct {
	family string
	at     time.Time
}

// Traffic policies, as indexes of policies, which has the label's values.
const internal, external = 0, 1

var policies = [...]string{internal: "internal", external: "external"}

// pendingChanges counts objects with changes that are not in force.
type pendingChanges struct {
	pending int // not included in a sync yet
	taken   int // included in the current sync, or in one that failed
}

func (p *pendingChanges) take() { *p = pendingChanges{taken: p.pending + p.taken} }

// New creates and registers the metrics. A registry accepts them only once.
func New(s Settings) (*Metrics, error) {
	r := registrar{Settings: s}
	m := &Metrics{families: s.Families, set: newSet(&r), start: time.Now()}
	r.registerReaders(subsystem, s.Mode)
	r.registerReaders("sluice", s.Extra)
	return m, r.err
}

// ServiceSeen counts an event of a Service. Pending is how many Services have
// changes that no sync has included yet.
func (m *Metrics) ServiceSeen(pending int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serviceChanges.Inc()
	m.services.pending = pending
	m.showPending()
}

// EndpointSliceSeen counts an event of an EndpointSlice: old is nil for an
// addition, cur for a deletion. Pending is how many slices have changes that no
// sync has included yet; if it is 0, the event changed nothing.
func (m *Metrics) EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endpointChanges.Inc()
	m.slices.pending = pending
	if pending > 0 {
		m.addTrigger(old, cur)
	}
	m.showPending()
}

// addTrigger remembers the trigger time in a slice's annotation, if it is new. A
// deletion, and an event that does not change endpoints, still carry the
// annotation of the last change.
func (m *Metrics) addTrigger(old, cur *discoveryv1.EndpointSlice) {
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

// Queued records that a sync was requested.
func (m *Metrics) Queued() {
	for _, f := range m.families {
		m.syncQueued.WithLabelValues(f.String()).SetToCurrentTime()
	}
}

// Began records the start of a sync, which includes every event seen before.
func (m *Metrics) Began() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.began = time.Now()
	m.taken = len(m.triggers)
	m.slices.take()
	m.services.take()
}

// Done records the end of the sync that began last.
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
		// Clocks differ between machines: a trigger in the future counts as 0 s.
		m.programming.WithLabelValues(t.family).Observe(max(time.Since(t.at), 0).Seconds())
	}
	m.triggers, m.taken = append([]trigger(nil), m.triggers[m.taken:]...), 0 // a copy, to free the memory of a burst
	m.slices.taken, m.services.taken = 0, 0
	m.showPending()
}

// Applied updates the counts of rows by what a sync changed in the kernel, in
// O(delta).
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
			m.noLocalEndpoints.WithLabelValues(name, f.String()).Set(float64(m.noLocal[p][f]))
		}
	}
}

// count adds a row, or removes it if by is -1. A nil row counts as nothing.
func (m *Metrics) count(sp *proxy.ServicePort, by int) {
	if sp == nil || len(sp.Local) > 0 || !sp.UsableSomewhere {
		return
	}
	if sp.Internal == proxy.ScopeLocal {
		m.noLocal[internal][sp.Key.Family] += by
	}
	outside := func(f proxy.Frontend) bool { return f.Kind != proxy.ClusterIP }
	if sp.External == proxy.ScopeLocal && slices.ContainsFunc(sp.Frontends, outside) {
		m.noLocal[external][sp.Key.Family] += by
	}
}

// Refused sets how many rows of a family the kernel refuses.
func (m *Metrics) Refused(f proxy.Family, n int) {
	m.refused.WithLabelValues(f.String()).Set(float64(n))
}

// Repairing counts a sync that repairs rules which another process changed.
func (m *Metrics) Repairing() { m.repairs.Inc() }

// Problems sets how many problems objects have.
func (m *Metrics) Problems(n int) { m.problems.Set(float64(n)) }

// Healthz counts a response of /healthz by its status code.
func (m *Metrics) Healthz(code int) { m.healthz.WithLabelValues(strconv.Itoa(code)).Inc() }

// Livez counts a response of /livez by its status code.
func (m *Metrics) Livez(code int) { m.livez.WithLabelValues(strconv.Itoa(code)).Inc() }

// ConntrackReconciled records one search for stale flows.
func (m *Metrics) ConntrackReconciled(f proxy.Family, took time.Duration, deleted int) {
	m.conntrack.WithLabelValues(f.String()).Observe(took.Seconds())
	m.conntrackDeleted.WithLabelValues(f.String()).Add(float64(deleted))
}
