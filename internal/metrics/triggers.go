package metrics

import (
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// maxTriggers bounds what is remembered while no sync succeeds. By then every
// sample would say the same: far too long.
const maxTriggers = 1 << 16

// trigger is when a change of endpoints began, far away from here.
type trigger struct {
	family proxy.Family
	at     time.Time
}

// triggers are those whose changes are not in force. They outlive failed
// syncs: the change is not in force any sooner because a sync failed.
type triggers struct {
	start   time.Time // what began before is not for this process to answer
	pending []trigger // no sync has begun since they came
	taken   []trigger // the sync under way puts them in force, or a later one
}

// note takes the trigger that an event brings, if it brings one. A deleted
// slice still names the trigger of its last change, and so does every event
// that is not a change of endpoints.
func (t *triggers) note(old, cur *discoveryv1.EndpointSlice) {
	if cur == nil {
		return
	}
	text, ok := cur.Annotations[v1.EndpointsLastChangeTriggerTime]
	if !ok || old != nil && old.Annotations[v1.EndpointsLastChangeTriggerTime] == text {
		return
	}
	family, ok := familyOf(cur.AddressType)
	if !ok {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !at.After(t.start) || len(t.pending)+len(t.taken) >= maxTriggers {
		return
	}
	t.pending = append(t.pending, trigger{family, at})
}

func familyOf(t discoveryv1.AddressType) (proxy.Family, bool) {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return proxy.IPv4, true
	case discoveryv1.AddressTypeIPv6:
		return proxy.IPv6, true
	}
	return 0, false
}

// take says that a sync begins that includes everything noted before.
func (t *triggers) take() {
	t.taken = append(t.taken, t.pending...)
	t.pending = nil
}

// done returns and forgets what the successful sync has put in force.
func (t *triggers) done() []trigger {
	done := t.taken
	t.taken = nil
	return done
}
