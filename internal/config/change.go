package config

import (
	"fmt"
	"net/netip"
	"reflect"

	logsapi "k8s.io/component-base/logs/api/v1"
)

// Change is a difference between two configurations.
type Change struct {
	Field Field // without the section of a mode
	Old   string
	New   string
	Live  bool // a running daemon can take it over
}

// String returns the field and what it goes from and to.
func (c Change) String() string { return fmt.Sprintf("%s from %q to %q", c.Field, c.Old, c.New) }

// aspect is a part of a configuration that is compared by itself.
type aspect struct {
	field Field
	live  bool
	of    func(*Configuration) any
}

// aspects cover every field but Object, which says the same again.
func aspects() []aspect {
	return []aspect{
		{"logging.verbosity", true, func(c *Configuration) any { return c.Logging.Verbosity }},
		{"healthzBindAddress", true, func(c *Configuration) any { return c.HealthzBindAddress }},
		{"metricsBindAddress", true, func(c *Configuration) any { return c.MetricsBindAddress }},
		{"clusterCIDR", true, func(c *Configuration) any { return c.ClusterCIDRs }},
		{"detectLocalMode", true, func(c *Configuration) any { return c.DetectLocalMode }},
		{"detectLocal.bridgeInterface", true, func(c *Configuration) any { return c.BridgeInterface }},
		{"detectLocal.interfaceNamePrefix", true, func(c *Configuration) any { return c.InterfaceNamePrefix }},
		{"nodePortAddresses", true, func(c *Configuration) any { return c.NodePortAddresses }},
		{"masqueradeAll", true, func(c *Configuration) any { return c.MasqueradeAll }},
		{"minSyncPeriod", true, func(c *Configuration) any { return c.MinSyncPeriod }},
		{"syncPeriod", true, func(c *Configuration) any { return c.SyncPeriod }},

		{"mode", false, func(c *Configuration) any { return c.Mode }},
		{"hostnameOverride", false, func(c *Configuration) any { return c.HostnameOverride }},
		{"clientConnection", false, func(c *Configuration) any { return c.Client }},
		{"logging", false, func(c *Configuration) any { return loggingBesideVerbosity(c.Logging) }},
		{"featureGates", false, func(c *Configuration) any { return c.FeatureGates }},
		{"configSyncPeriod", false, func(c *Configuration) any { return c.ConfigSyncPeriod }},
		{"oomScoreAdj", false, func(c *Configuration) any { return c.OOMScoreAdj }},
		{"bindAddress", false, func(c *Configuration) any { return c.BindAddress }},
		{"bindAddressHardFail", false, func(c *Configuration) any { return c.BindAddressHardFail }},
		{"enableProfiling", false, func(c *Configuration) any { return c.EnableProfiling }},
		{"showHiddenMetricsForVersion", false, func(c *Configuration) any { return c.ShowHiddenMetricsForVersion }},
		{"masqueradeBit", false, func(c *Configuration) any { return c.MasqueradeBit }},
		{"iptables.localhostNodePorts", false, func(c *Configuration) any { return c.LocalhostNodePorts }},
		{"ipvs", false, func(c *Configuration) any { return c.IPVS }},
		{"conntrack", false, func(c *Configuration) any { return c.Conntrack }},
	}
}

// Changes returns what differs between two configurations, in a fixed order:
// first what a running daemon can take over.
func Changes(old, now *Configuration) []Change {
	var out []Change
	for _, a := range aspects() {
		if before, after := a.of(old), a.of(now); !reflect.DeepEqual(before, after) {
			out = append(out, Change{a.field, show(before), show(after), a.live})
		}
	}
	return out
}

// show returns a value for people.
func show(v any) string {
	if a, ok := v.(netip.AddrPort); ok {
		return serverString(a)
	}
	return fmt.Sprintf("%+v", v)
}

// loggingBesideVerbosity returns what of the logging is fixed at the start.
func loggingBesideVerbosity(l logsapi.LoggingConfiguration) any {
	return struct {
		Format                 string
		FlushFrequency         string
		VModule                string
		TextSplit, JSONSplit   bool
		TextBuffer, JSONBuffer string
	}{
		l.Format, l.FlushFrequency.Duration.Duration.String(), logsapi.VModuleConfigurationPflag(&l.VModule).String(),
		l.Options.Text.SplitStream, l.Options.JSON.SplitStream,
		l.Options.Text.InfoBufferSize.String(), l.Options.JSON.InfoBufferSize.String(),
	}
}
