package config

import "fmt"

// Field names a field as a configuration file does.
type Field string

// The fields that flags set, or that can be wrong.
const (
	FieldFeatureGates          Field = "featureGates"
	FieldKubeconfig            Field = "clientConnection.kubeconfig"
	FieldContentType           Field = "clientConnection.contentType"
	FieldQPS                   Field = "clientConnection.qps"
	FieldBurst                 Field = "clientConnection.burst"
	FieldHostnameOverride      Field = "hostnameOverride"
	FieldBindAddress           Field = "bindAddress"
	FieldHealthzBindAddress    Field = "healthzBindAddress"
	FieldMetricsBindAddress    Field = "metricsBindAddress"
	FieldBindAddressHardFail   Field = "bindAddressHardFail"
	FieldEnableProfiling       Field = "enableProfiling"
	FieldShowHiddenMetrics     Field = "showHiddenMetricsForVersion"
	FieldMode                  Field = "mode"
	FieldIPTablesMasqueradeBit Field = "iptables.masqueradeBit"
	FieldIPTablesMasqueradeAll Field = "iptables.masqueradeAll"
	FieldLocalhostNodePorts    Field = "iptables.localhostNodePorts"
	FieldIPTablesSyncPeriod    Field = "iptables.syncPeriod"
	FieldIPTablesMinSyncPeriod Field = "iptables.minSyncPeriod"
	FieldIPVSSyncPeriod        Field = "ipvs.syncPeriod"
	FieldIPVSMinSyncPeriod     Field = "ipvs.minSyncPeriod"
	FieldIPVSScheduler         Field = "ipvs.scheduler"
	FieldIPVSExcludeCIDRs      Field = "ipvs.excludeCIDRs"
	FieldIPVSStrictARP         Field = "ipvs.strictARP"
	FieldIPVSTCPTimeout        Field = "ipvs.tcpTimeout"
	FieldIPVSTCPFinTimeout     Field = "ipvs.tcpFinTimeout"
	FieldIPVSUDPTimeout        Field = "ipvs.udpTimeout"
	FieldNFTablesMasqueradeBit Field = "nftables.masqueradeBit"
	FieldNFTablesSyncPeriod    Field = "nftables.syncPeriod"
	FieldNFTablesMinSyncPeriod Field = "nftables.minSyncPeriod"
	FieldDetectLocalMode       Field = "detectLocalMode"
	FieldBridgeInterface       Field = "detectLocal.bridgeInterface"
	FieldInterfaceNamePrefix   Field = "detectLocal.interfaceNamePrefix"
	FieldClusterCIDR           Field = "clusterCIDR"
	FieldNodePortAddresses     Field = "nodePortAddresses"
	FieldOOMScoreAdj           Field = "oomScoreAdj"
	FieldMaxPerCore            Field = "conntrack.maxPerCore"
	FieldMin                   Field = "conntrack.min"
	FieldTCPEstablishedTimeout Field = "conntrack.tcpEstablishedTimeout"
	FieldTCPCloseWaitTimeout   Field = "conntrack.tcpCloseWaitTimeout"
	FieldTCPBeLiberal          Field = "conntrack.tcpBeLiberal"
	FieldUDPTimeout            Field = "conntrack.udpTimeout"
	FieldUDPStreamTimeout      Field = "conntrack.udpStreamTimeout"
	FieldConfigSyncPeriod      Field = "configSyncPeriod"
)

// FieldError says what is wrong with a field.
type FieldError struct {
	Field  Field
	Value  string
	Reason string
}

// Error returns the field, its value and the reason.
func (e *FieldError) Error() string { return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Reason) }

func wrong(f Field, value any, format string, args ...any) error {
	return &FieldError{Field: f, Value: fmt.Sprint(value), Reason: fmt.Sprintf(format, args...)}
}
