package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// The ports that load balancers and Prometheus know.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// previousMinor is the minor version before the kube-proxy that we stand in
// for, whose hidden metrics can be asked for. Files for the kube-proxy of that
// version name minorBefore.
const (
	previousMinor = "1.36"
	minorBefore   = "1.35"
)

// Defaults returns what counts where nothing is said, as far as that depends on
// nothing else.
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

// FlagDefaults returns what the help text shows as the defaults of flags: those
// of kube-proxy in mode iptables, whose flags they are. Of a name that would be
// chosen, or found out, it shows none.
func FlagDefaults() *v1alpha1.KubeProxyConfiguration {
	o := Defaults()
	o.DetectLocalMode = ""
	o.HealthzBindAddress, o.MetricsBindAddress = "0.0.0.0:10256", "127.0.0.1:10249"
	every, least := metav1.Duration{Duration: UsualSyncPeriod}, metav1.Duration{Duration: time.Second}
	o.IPTables.SyncPeriod, o.IPTables.MinSyncPeriod = every, least
	o.IPVS.SyncPeriod, o.IPVS.MinSyncPeriod = every, least
	o.Winkernel.RootHnsEndpointName = rootEndpoint
	return o
}

// rootEndpoint is the HNS endpoint of the host, unless another is named.
const rootEndpoint = "cbr0"

const (
	// UsualSyncPeriod is kube-proxy's default, by which its health is judged.
	UsualSyncPeriod = 30 * time.Second
	// A change costs what it is in mode nftables, so a full sync is only there
	// to find what was not noticed.
	nftablesSyncPeriod = time.Hour
)
