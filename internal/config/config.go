package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// The words that can stand where CIDRs of the node's addresses could be given.
const (
	Primary   = "primary"   // the node's own addresses
	Localhost = "localhost" // loopback addresses
	All       = "all"       // every local address
)

// None is the word that switches a server off where an address could be given.
const None = "none"

// Configuration is everything the daemon can be told, with every default
// filled in. It is never changed once made.
type Configuration struct {
	Mode             ProxyMode
	HostnameOverride string
	Client           ClientConnection
	Logging          logsapi.LoggingConfiguration
	FeatureGates     map[string]bool
	ConfigSyncPeriod time.Duration // without effect: objects are not cached
	OOMScoreAdj      int

	BindAddress                 netip.Addr     // the node's, whatever its Node says; the zero value: as the Node says
	HealthzBindAddress          netip.AddrPort // the zero value: no health server
	MetricsBindAddress          netip.AddrPort // the zero value: no metrics server
	BindAddressHardFail         bool
	EnableProfiling             bool
	ShowHiddenMetricsForVersion string

	ClusterCIDRs        []netip.Prefix
	DetectLocalMode     LocalMode
	BridgeInterface     string
	InterfaceNamePrefix string
	NodePortAddresses   NodePortAddresses

	MasqueradeAll bool
	MasqueradeBit int           // the bit of the packet mark that asks for masquerading
	MinSyncPeriod time.Duration // from the end of one sync to the start of the next; 0: as soon as the last one is done
	SyncPeriod    time.Duration // from one full sync to the next

	LocalhostNodePorts bool // NodePorts on 127.0.0.0/8 too, where NodePortAddresses have it
	IPVS               IPVSSettings
	Conntrack          Conntrack

	// Object is the configuration as a file would say it, for those who ask
	// what is in force. The fields above are what counts.
	Object *v1alpha1.KubeProxyConfiguration
}

// ClientConnection is how the API server is spoken to.
type ClientConnection struct {
	Kubeconfig         string // "": the cluster this runs in
	AcceptContentTypes string
	ContentType        string
	QPS                float32
	Burst              int
}

// NodePortAddresses says which addresses of the node take NodePorts. The zero
// value is all of them.
type NodePortAddresses struct {
	Primary bool           // the node's own addresses
	CIDRs   []netip.Prefix // and those within; a family without any, unless Primary: every local address of it
}

// String returns the addresses as a file names them.
func (n NodePortAddresses) String() string {
	ranges := strings.Trim(fmt.Sprint(n.CIDRs), "[]")
	switch {
	case n.Primary:
		return strings.TrimSpace(Primary + " " + ranges)
	case len(n.CIDRs) == 0:
		return All
	default:
		return ranges
	}
}

// IPVSSettings are what only mode ipvs reads. A timeout of 0 keeps the kernel's.
type IPVSSettings struct {
	Scheduler     string
	ExcludeCIDRs  []netip.Prefix
	StrictARP     bool
	TCPTimeout    time.Duration
	TCPFinTimeout time.Duration
	UDPTimeout    time.Duration
}

// Setting is a value that has a default. What was not asked for explicitly
// must not take away what an administrator has set by other means.
type Setting[T any] struct {
	Value    T
	Explicit bool // the operator has said it
}

// Conntrack is what the kernel's connection tracking should be set to. A zero
// Value leaves the kernel's as it is.
type Conntrack struct {
	MaxPerCore            Setting[int]
	Min                   Setting[int]
	TCPEstablishedTimeout Setting[time.Duration]
	TCPCloseWaitTimeout   Setting[time.Duration]
	TCPBeLiberal          Setting[bool]
	UDPTimeout            Setting[time.Duration]
	UDPStreamTimeout      Setting[time.Duration]
}

// Default returns the configuration of a daemon that is told nothing and runs
// in the default mode.
func Default() Configuration {
	var in Input
	c, err := in.Configuration(Modes()[0])
	if err != nil {
		panic("the defaults are not valid: " + err.Error())
	}
	return c
}
