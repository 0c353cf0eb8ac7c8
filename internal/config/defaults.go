package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// The default ports, which load balancers and Prometheus are configured with.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// previousMinor is the minor version before [KubernetesVersion], whose hidden
// metrics can be shown. Files for the kube-proxy of that version name minorBefore.
const (
	previousMinor = "1.36"
	minorBefore   = "1.35"
)

// Defaults returns the defaults that do not depend on other fields.
func Defaults() *v1alpha1.KubeProxyConfiguration {
	o := &v1alpha1.KubeProxyConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ClientConnection: componentconfig.ClientConnectionConfiguration{
			ContentType: "application/vnd.kubernetes.protobuf", QPS: 5, Burst: 10,
		},
		BindAddress:      "0.0.0.0",
		DetectLocalMode:  LocalModeClusterCIDR,
		OOMScoreAdj:      new(int32(-999)),
		ConfigSyncPeriod: metav1.Duration{Duration: 15 * time.Minute},
		IPTables:         v1alpha1.KubeProxyIPTablesConfiguration{MasqueradeBit: new(int32(14)), LocalhostNodePorts: new(true)},
		NFTables:         v1alpha1.KubeProxyNFTablesConfiguration{MasqueradeBit: new(int32(14))},
		Conntrack: v1alpha1.KubeProxyConntrackConfiguration{
			MaxPerCore:            new(int32(32 << 10)),
			Min:                   new(int32(128 << 10)),
			TCPEstablishedTimeout: &metav1.Duration{Duration: 24 * time.Hour},
			TCPCloseWaitTimeout:   &metav1.Duration{Duration: time.Hour},
		},
	}
	logsapi.SetRecommendedLoggingConfiguration(&o.Logging)
	return o
}

// FlagDefaults returns the defaults that the help text shows: those of kube-proxy in
// mode iptables. Fields whose defaults are determined at run time are empty.
func FlagDefaults() *v1alpha1.KubeProxyConfiguration {
	o := Defaults()
	o.DetectLocalMode = ""
	o.HealthzBindAddress, o.MetricsBindAddress = "0.0.0.0:10256", "127.0.0.1:10249"
	syncPeriod, minSyncPeriod := metav1.Duration{Duration: DefaultSyncPeriod}, metav1.Duration{Duration: time.Second}
	o.IPTables.SyncPeriod, o.IPTables.MinSyncPeriod = syncPeriod, minSyncPeriod
	o.IPVS.SyncPeriod, o.IPVS.MinSyncPeriod = syncPeriod, minSyncPeriod
	o.Winkernel.RootHnsEndpointName = rootEndpoint
	return o
}

// rootEndpoint is the default name of the host's own HNS endpoint.
const rootEndpoint = "cbr0"

const (
	// DefaultSyncPeriod is the default of kube-proxy, and of all modes but nftables.
	DefaultSyncPeriod = 30 * time.Second
	// nftablesSyncPeriod is longer because mode nftables is notified of changes by
	// other processes: its full sync is only a safety net.
	nftablesSyncPeriod = time.Hour
)
