package proxy

import (
	"fmt"
	"net/netip"
	"testing"
)

// The lists of the rows under test.
var (
	clusterList = []Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:80")}, {Addr: netip.MustParseAddrPort("10.1.0.2:80")}}
	localList   = []Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:80"), Local: true}}
)

// endpoints are the situations that a row can be in.
var endpoints = map[string]ServicePort{
	"here and elsewhere": {Cluster: clusterList, Local: localList, UsableSomewhere: true},
	"elsewhere only":     {Cluster: clusterList, UsableSomewhere: true},
	"nowhere":            {},
}

// detectors are ways in which the node tells pods apart.
var detectors = map[string]*Node{
	"by source":    {LocalPods: LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}},
	"by interface": {LocalPods: LocalTrafficDetector{Interface: "cbr0"}},
	"masquerade":   {LocalPods: LocalTrafficDetector{Interface: "cbr0"}, MasqueradeAll: true},
	"none":         {},
	"other family": {LocalPods: LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}}},
}

// describeRoute says in a few words what a route does.
func describeRoute(r Route) string {
	if len(r.To) == 0 {
		return r.Otherwise.String()
	}
	s := "cluster"
	if r.Scope == ScopeLocal {
		s = "local"
	}
	if r.Masquerade {
		s += " masq"
	}
	return s
}

// TestRouteClusterIP is the decision table of ClusterIPs. The external policy has no
// effect on it.
func TestRouteClusterIP(t *testing.T) {
	tests := []struct {
		internal                     Scope
		endpoints, detector          string
		ourPod, thisNode, otherwhere string
	}{
		{ScopeCluster, "here and elsewhere", "by source", "cluster", "cluster masq", "cluster masq"},
		{ScopeCluster, "here and elsewhere", "by interface", "cluster", "cluster masq", "cluster masq"},
		{ScopeCluster, "here and elsewhere", "masquerade", "cluster masq", "cluster masq", "cluster masq"},
		{ScopeCluster, "here and elsewhere", "none", "cluster", "cluster", "cluster"},
		{ScopeCluster, "here and elsewhere", "other family", "cluster", "cluster", "cluster"},
		{ScopeCluster, "elsewhere only", "by source", "cluster", "cluster masq", "cluster masq"},
		{ScopeCluster, "nowhere", "by source", "reject", "reject", "reject"},
		{ScopeLocal, "here and elsewhere", "by source", "local", "local masq", "local masq"},
		{ScopeLocal, "here and elsewhere", "by interface", "local", "local masq", "local masq"},
		{ScopeLocal, "here and elsewhere", "masquerade", "local masq", "local masq", "local masq"},
		{ScopeLocal, "here and elsewhere", "none", "local", "local", "local"},
		{ScopeLocal, "elsewhere only", "by source", "drop", "drop", "drop"},
		{ScopeLocal, "elsewhere only", "none", "drop", "drop", "drop"},
		{ScopeLocal, "nowhere", "by source", "reject", "reject", "reject"},
	}
	for _, tt := range tests {
		for _, external := range []Scope{ScopeCluster, ScopeLocal} {
			t.Run(fmt.Sprintf("%v/%s/%s/external %v", tt.internal, tt.endpoints, tt.detector, external), func(t *testing.T) {
				row := endpoints[tt.endpoints]
				row.Internal, row.External = tt.internal, external
				for from, want := range map[Origin]string{OurPod: tt.ourPod, ThisNode: tt.thisNode, Elsewhere: tt.otherwhere} {
					if got := describeRoute(row.Policy(ClusterIP, detectors[tt.detector])[from]); got != want {
						t.Errorf("from %v: %s; want %s", from, got, want)
					}
				}
			})
		}
	}
}

// TestRouteExternal is the decision table of all other addresses. The internal policy,
// the detector and masqueradeAll have no effect on it.
func TestRouteExternal(t *testing.T) {
	tests := []struct {
		external                     Scope
		endpoints                    string
		ourPod, thisNode, otherwhere string
	}{
		{ScopeCluster, "here and elsewhere", "cluster masq", "cluster masq", "cluster masq"},
		{ScopeCluster, "elsewhere only", "cluster masq", "cluster masq", "cluster masq"},
		{ScopeCluster, "nowhere", "reject", "reject", "reject"},
		{ScopeLocal, "here and elsewhere", "cluster", "cluster masq", "local"},
		{ScopeLocal, "elsewhere only", "cluster", "cluster masq", "drop"},
		{ScopeLocal, "nowhere", "reject", "reject", "reject"},
	}
	for _, tt := range tests {
		for _, kind := range []Kind{LoadBalancer, ExternalIP, NodePort} {
			for _, internal := range []Scope{ScopeCluster, ScopeLocal} {
				for detector, node := range detectors {
					t.Run(fmt.Sprintf("%v/%v/%s/internal %v/%s", kind, tt.external, tt.endpoints, internal, detector), func(t *testing.T) {
						row := endpoints[tt.endpoints]
						row.Internal, row.External = internal, tt.external
						for from, want := range map[Origin]string{OurPod: tt.ourPod, ThisNode: tt.thisNode, Elsewhere: tt.otherwhere} {
							if got := describeRoute(row.Policy(kind, node)[from]); got != want {
								t.Errorf("from %v: %s; want %s", from, got, want)
							}
						}
					})
				}
			}
		}
	}
}

// TestRouteLastResort checks that neither list is used in place of the other when they
// have different endpoints.
func TestRouteLastResort(t *testing.T) {
	row := ServicePort{Internal: ScopeCluster, External: ScopeLocal, Local: localList, Cluster: clusterList[1:], UsableSomewhere: true}
	node := detectors["by source"]
	tests := []struct {
		kind Kind
		from Origin
		want Endpoint
	}{
		{ClusterIP, Elsewhere, clusterList[1]},
		{NodePort, OurPod, clusterList[1]},
		{NodePort, Elsewhere, localList[0]},
	}
	for _, tt := range tests {
		if got := row.Policy(tt.kind, node)[tt.from].To; len(got) != 1 || got[0] != tt.want {
			t.Errorf("%v from %v: %v; want %v", tt.kind, tt.from, got, tt.want)
		}
	}
}
