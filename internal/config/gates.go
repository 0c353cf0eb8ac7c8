package config

import (
	"maps"
	"slices"
)

// knownGates returns the feature gates that kube-proxy reads or that clusters have
// set for it. They are accepted by name, so that a file with them stays valid:
// what they switch is in force here, or does not concern this daemon.
func knownGates() []string {
	return []string{
		"AllAlpha",
		"AllBeta",
		"AllowServiceLBStatusOnNonLB",
		"ComponentFlagz",
		"ComponentSLIs",
		"ComponentStatusz",
		"ContextualLogging",
		"EndpointSlice",
		"EndpointSliceProxying",
		"EndpointSliceTerminatingCondition",
		"IPv6DualStack",
		"InOrderInformers",
		"InformerResourceVersion",
		"KubeProxyDrainingTerminatingNodes",
		"KubeProxyNFTablesLocalhostNodePorts",
		"LoadBalancerIPMode",
		"LoggingAlphaOptions",
		"LoggingBetaOptions",
		"MinimizeIPTablesRestore",
		"MixedProtocolLBService",
		"MultiCIDRServiceAllocator",
		"NFTablesProxyMode",
		"PreferSameTrafficDistribution",
		"ProxyTerminatingEndpoints",
		"SCTPSupport",
		"ServiceInternalTrafficPolicy",
		"ServiceNodeExclusion",
		"ServiceTopology",
		"ServiceTrafficDistribution",
		"SupportIPVSProxyMode",
		"TopologyAwareHints",
		"WatchListClient",
		"WinDSR",
		"WinOverlay",
	}
}

// UnknownGates returns, sorted, the names of gates that we have never heard of.
func UnknownGates(gates map[string]bool) []string {
	known := knownGates()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(gates)), func(name string) bool {
		return slices.Contains(known, name)
	})
}

// gateName reports whether a gate could have this name: letters and digits,
// a letter first.
func gateName(name string) bool {
	for i, r := range name {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}
