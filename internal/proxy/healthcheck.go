package proxy

import (
	"cmp"
	"fmt"
)

// HealthCheckKey names the health check of a Service in one family.
type HealthCheckKey struct {
	Namespace string
	Name      string
	Family    Family
}

// String returns "namespace/name/family".
func (k HealthCheckKey) String() string {
	return k.Namespace + "/" + k.Name + "/" + k.Family.String()
}

// CompareHealthCheckKeys orders keys by namespace, name and family.
func CompareHealthCheckKeys(a, b HealthCheckKey) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Family, b.Family),
	)
}

// HealthCheck is what a load balancer may ask this node about a Service: at a
// port of the node's own, whether the node has endpoints for it. No packet of
// the Service depends on it; a dataplane may have to open the port. It is
// immutable once published.
type HealthCheck struct {
	Key   HealthCheckKey
	Port  uint16 // where the node answers
	Local int    // distinct addresses of ready endpoints on this node
}

// String returns the check as one line.
func (h *HealthCheck) String() string {
	return fmt.Sprintf("%v port=%d local=%d", h.Key, h.Port, h.Local)
}

// HealthCheckChange is a health check before and after a step. Old is nil for a
// new one, New for one that is gone.
type HealthCheckChange struct {
	Old, New *HealthCheck
}

// Key returns whose change it is.
func (c HealthCheckChange) Key() HealthCheckKey {
	if c.New != nil {
		return c.New.Key
	}
	return c.Old.Key
}

// Moves reports whether a port of the node begins or ends to be a health
// check's, which is all that a dataplane can be concerned with.
func (c HealthCheckChange) Moves() bool {
	return c.Old == nil || c.New == nil || c.Old.Port != c.New.Port
}
