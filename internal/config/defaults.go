package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

const (
	defaultContentType       = "application/vnd.kubernetes.protobuf"
	defaultQPS               = 5
	defaultBurst             = 10
	defaultOOMScoreAdj int32 = -999
	defaultScheduler         = "rr"

	defaultMasqueradeBit int32 = 14

	defaultConfigSyncPeriod = 15 * time.Minute
	defaultSyncPeriod       = 30 * time.Second
	defaultMinSyncPeriod    = time.Second
	// A change costs what it is in mode nftables, so a full sync is only there
	// to find what nobody has noticed.
	fullSyncPeriod = time.Hour

	defaultMaxPerCore  = 32 << 10
	defaultMin         = 128 << 10
	defaultEstablished = 24 * time.Hour
	defaultCloseWait   = time.Hour
)

func valueOr[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}

// effective returns the configuration as a file that asks for exactly it. A mode
// that was left open stays so, since NodePorts depend on that too. The periods
// stand in the section of the mode in force only.
func (r *reading) effective() *v1alpha1.KubeProxyConfiguration {
	o, c := r.o.DeepCopy(), &r.c
	o.TypeMeta = metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}
	o.ClientConnection.ContentType = c.Client.ContentType
	o.ClientConnection.QPS = c.Client.QPS
	o.ClientConnection.Burst = int32(c.Client.Burst)
	o.Logging = *c.Logging.DeepCopy()
	if o.BindAddress == "" {
		o.BindAddress = "0.0.0.0"
	}
	o.HealthzBindAddress = serverString(c.HealthzBindAddress)
	o.MetricsBindAddress = serverString(c.MetricsBindAddress)
	o.DetectLocalMode = v1alpha1.LocalMode(c.DetectLocalMode)
	if len(o.NodePortAddresses) == 0 && c.NodePortAddresses.Primary {
		o.NodePortAddresses = []string{Primary}
	}
	o.OOMScoreAdj = new(int32(c.OOMScoreAdj))
	o.ConfigSyncPeriod.Duration = c.ConfigSyncPeriod
	o.IPTables.LocalhostNodePorts = new(valueOr(o.IPTables.LocalhostNodePorts, true))
	o.Conntrack.MaxPerCore = new(int32(c.Conntrack.MaxPerCore.Value))
	o.Conntrack.Min = new(int32(c.Conntrack.Min.Value))
	o.Conntrack.TCPEstablishedTimeout = &metav1.Duration{Duration: c.Conntrack.TCPEstablishedTimeout.Value}
	o.Conntrack.TCPCloseWaitTimeout = &metav1.Duration{Duration: c.Conntrack.TCPCloseWaitTimeout.Value}
	effectiveSections(o, c)
	return o
}

func effectiveSections(o *v1alpha1.KubeProxyConfiguration, c *Configuration) {
	var none metav1.Duration
	o.IPTables.SyncPeriod, o.IPTables.MinSyncPeriod = none, none
	o.IPVS.SyncPeriod, o.IPVS.MinSyncPeriod = none, none
	o.NFTables.SyncPeriod, o.NFTables.MinSyncPeriod = none, none
	every, least := metav1.Duration{Duration: c.SyncPeriod}, metav1.Duration{Duration: c.MinSyncPeriod}
	bit := new(int32(c.MasqueradeBit))
	switch c.Mode {
	case NFTables:
		o.NFTables.SyncPeriod, o.NFTables.MinSyncPeriod = every, least
		o.NFTables.MasqueradeBit, o.NFTables.MasqueradeAll = bit, c.MasqueradeAll
		if o.Mode == "" {
			o.IPTables.MasqueradeBit = bit // it comes first then
		}
	case IPVS:
		o.IPVS.SyncPeriod, o.IPVS.MinSyncPeriod = every, least
		o.IPTables.MasqueradeBit, o.IPTables.MasqueradeAll = bit, c.MasqueradeAll
	default:
		o.IPTables.SyncPeriod, o.IPTables.MinSyncPeriod = every, least
		o.IPTables.MasqueradeBit, o.IPTables.MasqueradeAll = bit, c.MasqueradeAll
	}
	for _, section := range []**int32{&o.IPTables.MasqueradeBit, &o.NFTables.MasqueradeBit} {
		if *section == nil {
			*section = new(defaultMasqueradeBit)
		}
	}
}
