package metrics

import (
	"context"
	"fmt"
	"strconv"
	"time"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/config"
	"sluice/internal/proxy"
)

// Settings are what Metrics are made of.
type Settings struct {
	// Register and CustomRegister are those of a registry.
	Register       func(k8s.Registerable) error
	CustomRegister func(k8s.StableCollector) error

	Mode     config.ProxyMode
	Families []proxy.Family // those that are served

	// Packets reads what rules have matched, in iptables mode and whenever
	// somebody asks for metrics. Nil: nobody knows.
	Packets func() Packets

	// AffinityClients tells how many clients are remembered for session affinity,
	// and for how many there is room, in nftables mode. Nil: nobody knows.
	AffinityClients func(context.Context, proxy.Family) (clients, room int, err error)
}

// Metrics holds every metric of the proxy. Its methods may be called by any
// goroutine. Those of metrics that the mode does not have do nothing.
type Metrics struct {
	families []proxy.Family
	set
}

// New makes and registers the metrics. They can be registered only once in one
// registry.
func New(s Settings) (*Metrics, error) {
	m := &Metrics{families: s.Families, set: newSet()}
	for _, r := range m.of(s.Mode) {
		if err := s.Register(r); err != nil {
			return nil, fmt.Errorf("register metric %s: %w", r.FQName(), err)
		}
	}
	if s.Mode == config.IPTables && s.Packets != nil {
		if err := s.CustomRegister(newPacketCollector(s)); err != nil {
			return nil, fmt.Errorf("register the kernel's packet counters: %w", err)
		}
	}
	if s.Mode == config.NFTables && s.AffinityClients != nil {
		if err := s.CustomRegister(newAffinityCollector(s)); err != nil {
			return nil, fmt.Errorf("register the number of remembered clients: %w", err)
		}
	}
	return m, nil
}

// Kind is how much a sync does.
type Kind uint8

// The kinds of sync.
const (
	Full    Kind = iota // everything is made right
	Partial             // only what changed
)

// String returns the kind in lower case.
func (k Kind) String() string {
	switch k {
	case Full:
		return "full"
	case Partial:
		return "partial"
	default:
		panic(fmt.Sprintf("unknown kind of sync %d", uint8(k)))
	}
}

// SyncDone counts a sync that ended now.
func (m *Metrics) SyncDone(f proxy.Family, k Kind, took time.Duration, ok bool) {
	m.sync.WithLabelValues(f.String()).Observe(took.Seconds())
	switch k {
	case Full:
		m.syncFull.WithLabelValues(f.String()).Observe(took.Seconds())
	case Partial:
		m.syncPartial.WithLabelValues(f.String()).Observe(took.Seconds())
	default:
		panic("unknown kind of sync " + k.String())
	}
	if ok {
		m.syncLast.WithLabelValues(f.String()).SetToCurrentTime()
	}
}

// SyncQueued notes that a sync was asked for now.
func (m *Metrics) SyncQueued(f proxy.Family) {
	m.syncQueued.WithLabelValues(f.String()).SetToCurrentTime()
}

// NetworkProgramming counts a change that is in force now, by when it began.
// Clocks differ between machines: a change from the future has taken no time.
func (m *Metrics) NetworkProgramming(f proxy.Family, since time.Time) {
	m.programming.WithLabelValues(f.String()).Observe(max(time.Since(since), 0).Seconds())
}

// EndpointSliceSeen counts an event of an EndpointSlice.
func (m *Metrics) EndpointSliceSeen() { m.endpointChanges.Inc() }

// EndpointSlicesPending says how many EndpointSlices have changes that are not in force.
func (m *Metrics) EndpointSlicesPending(n int) { m.endpointsPending.Set(float64(n)) }

// ServiceSeen counts an event of a Service.
func (m *Metrics) ServiceSeen() { m.serviceChanges.Inc() }

// ServicesPending says how many Services have changes that are not in force.
func (m *Metrics) ServicesPending(n int) { m.servicesPending.Set(float64(n)) }

// Policy is a Service's traffic policy.
type Policy uint8

// The traffic policies.
const (
	Internal Policy = iota
	External
)

// Policies lists both policies, in order.
var Policies = [...]Policy{Internal, External}

// String returns the policy as the label spells it.
func (p Policy) String() string {
	switch p {
	case Internal:
		return "internal"
	case External:
		return "external"
	default:
		panic(fmt.Sprintf("unknown policy %d", uint8(p)))
	}
}

// NoLocalEndpoints says how many service ports may use endpoints on this node
// only, and have them only elsewhere.
func (m *Metrics) NoLocalEndpoints(p Policy, f proxy.Family, n int) {
	m.noLocalEndpoints.WithLabelValues(p.String(), f.String()).Set(float64(n))
}

// Healthz counts an answer of /healthz.
func (m *Metrics) Healthz(code int) { m.healthz.WithLabelValues(strconv.Itoa(code)).Inc() }

// Livez counts an answer of /livez.
func (m *Metrics) Livez(code int) { m.livez.WithLabelValues(strconv.Itoa(code)).Inc() }

// ConntrackReconciled counts a reconciliation of stale flows.
func (m *Metrics) ConntrackReconciled(f proxy.Family, took time.Duration, deleted int) {
	m.conntrack.WithLabelValues(f.String()).Observe(took.Seconds())
	m.conntrackDeleted.WithLabelValues(f.String()).Add(float64(deleted))
}

// NftablesSyncFailure counts a transaction that failed.
func (m *Metrics) NftablesSyncFailure(f proxy.Family) {
	m.nftSyncFailures.WithLabelValues(f.String()).Inc()
}

// NftablesCleanupFailure counts a deletion of a stale chain that failed.
func (m *Metrics) NftablesCleanupFailure(f proxy.Family) {
	m.nftCleanupFailures.WithLabelValues(f.String()).Inc()
}

// Refused says how many service ports the kernel refuses.
func (m *Metrics) Refused(f proxy.Family, n int) {
	m.refused.WithLabelValues(f.String()).Set(float64(n))
}
