package mode

import (
	"context"
	"net/netip"
	"time"

	"sluice/internal/config"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// IPVSLink is kube-proxy's name for the dummy link that has the addresses of IPVS. IPVS takes
// packets to local addresses before they reach a socket, so that modes ipvs and userspace
// cannot work at the same time.
const IPVSLink = "kube-ipvs0"

// Settings are what every mode must know before it sees a state.
type Settings struct {
	MasqueradeBit uint8          // the bit of the packet mark that requests masquerading
	Families      []proxy.Family // the families to serve; nil for both
	CountBytes    bool           // count bytes and packets of Services, in modes that do so only on request
	ResetTCP      bool           // refuse TCP connections by a reset instead of an ICMP error

	Relay Relay // for modes that relay connections themselves
	IPVS  IPVS  // for mode ipvs
	EBPF  EBPF  // for mode ebpf

	Kernelspace Kernelspace // for mode kernelspace

	// Others returns what other modes left that shows who set route_localnet. Nil if
	// there are no other modes.
	Others func(context.Context) (localnet.Traces, error)
}

// Relay are the settings of a mode that relays connections itself.
type Relay struct {
	Retries        int           // how many other endpoints are tried if one cannot be connected to
	DialTimeout    time.Duration // for each attempt
	UDPTimeout     time.Duration // after which an idle UDP session ends
	DrainTimeout   time.Duration // how long a stopping process waits for open connections
	MaxConnections int           // limit of connections, and separately of UDP sessions; 0 for as many as the limit of open files allows
}

// DefaultRelay returns the default settings.
func DefaultRelay() Relay {
	return Relay{Retries: 3, DialTimeout: 2 * time.Second, UDPTimeout: time.Minute, DrainTimeout: 25 * time.Second}
}

// IPVS are the settings of kube-proxy's configuration that only mode ipvs has.
type IPVS struct {
	Scheduler    string         // empty for rr
	ExcludeCIDRs []netip.Prefix // virtual servers in these ranges are never removed
	StrictARP    bool           // do not answer ARP requests for addresses of other links

	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration // of idle connections; 0 to leave the kernel's
}

// EBPF are the settings of mode ebpf.
type EBPF struct {
	CgroupRoot string // the cgroup whose sockets are served; empty for the root of the mounted cgroup2 hierarchy
	BPFRoot    string // the directory in a BPF file system where programs and maps are pinned
	Fallback   bool   // if the kernel does not support the mode, open mode nftables instead of failing

	Untracked []netip.Prefix // addresses of pods; connections between them are not tracked unless rules translate them
}

// DefaultEBPF returns the default settings.
func DefaultEBPF() EBPF { return EBPF{BPFRoot: "/sys/fs/bpf/sluice"} }

// Kernelspace are the settings of kube-proxy's configuration that only mode kernelspace has.
type Kernelspace struct {
	Network      string     // the HNS network of the pods
	SourceVIP    netip.Addr // the source address that pods see on an overlay network, where it is required
	DSR          bool       // endpoints answer clients of ClusterIPs directly
	RootEndpoint string     // the name of the HNS endpoint that answers health checks

	// ForwardHealthCheckVIP forwards health checks at load-balancer addresses: to the
	// health-check port of the Service or, if it has none, to HealthzPort unless that is 0.
	ForwardHealthCheckVIP bool
	HealthzPort           uint16
}

// Served returns the families to serve.
func (s Settings) Served() []proxy.Family {
	if s.Families == nil {
		return proxy.Families[:]
	}
	return s.Families
}

// Need is why a host needs a mode.
type Need struct {
	Why     string // empty: it does not
	Certain bool   // in another mode, some traffic of Services is lost for certain; otherwise it may be
}

// Mode is one way of programming the kernel.
type Mode struct {
	Name config.ProxyMode

	// Probe returns which of the families the kernel supports, without changing anything
	// that affects packets. If it supports none, the error says what is missing.
	Probe func(context.Context, Settings) ([]proxy.Family, error)

	// Prepare opens loopback addresses to NodePorts, or closes them if a service proxy
	// opened them. It serves a daemon that may not write kernel settings itself.
	Prepare func(ctx context.Context, s Settings, opens bool) error

	// Needs returns a function that looks whether the host needs this mode although it
	// supports another. It changes nothing, and is cheap if nothing has changed since it was
	// last called. Nil if no host needs the mode.
	Needs func(Settings) func(context.Context) (Need, error)

	// Open returns the dataplane. The kernel's behaviour does not change before its Sync.
	// Nil if the mode is for another operating system and can only be rendered.
	Open func(context.Context, Settings) (proxy.Dataplane, error)

	// Render prints what the first Sync of a new dataplane would write, or how that differs
	// from what the kernel has. It changes nothing, and reads the kernel only for a
	// difference.
	Render func(context.Context, *Rendering) error

	// Balancing lists the methods of choosing an endpoint that the mode supports, its
	// default first. Weights is whether it supports weights of endpoints.
	Balancing []proxy.Balancing
	Weights   bool

	// PreservesDestination is whether the mode supports annotation preserve-destination:
	// endpoints see a LoadBalancer address as the destination of their connections.
	PreservesDestination bool

	// Polls is whether the mode is not notified of changes by other processes, so that
	// everything is compared each sync period.
	Polls bool

	// Drains is whether the mode continues after its last write, to serve open connections
	// until another daemon has started.
	Drains bool

	// Flows opens the connections that must be ended when their endpoint is removed. Nil if
	// the mode ends them itself.
	Flows func() (ct.Interface, error)

	// Unseen describes the connections that Flows does not include; empty if it includes
	// all.
	Unseen string

	// Ends opens the events of translated connections that end. Nil if Flows is nil.
	Ends func() (ct.Ends, error)

	// Traces returns what the mode left that shows who set route_localnet. Nil if the mode
	// never leaves anything.
	Traces func(context.Context) (localnet.Traces, error)

	// Cleanup removes the objects of the mode, and those of kube-proxy's mode of the same
	// name, except for what an open dataplane of any mode uses; open may be nil. It returns
	// what it removed, and continues after an error.
	Cleanup func(ctx context.Context, s Settings, open proxy.Dataplane) ([]string, error)
}

// Opener adapts a function that returns a concrete type to [Mode.Open]. After an error the
// dataplane is a nil interface, not a nil pointer in an interface.
func Opener[D proxy.Dataplane](open func(context.Context, Settings) (D, error)) func(context.Context, Settings) (proxy.Dataplane, error) {
	return func(ctx context.Context, s Settings) (proxy.Dataplane, error) {
		d, err := open(ctx, s)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
}

// KeepsLoopback reports whether an open dataplane manages route_localnet.
func KeepsLoopback(open proxy.Dataplane) bool {
	d, ok := open.(interface{ KeepsLoopback() bool })
	return ok && d.KeepsLoopback()
}
