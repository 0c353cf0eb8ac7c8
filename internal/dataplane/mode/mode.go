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

// IPVSLink is the link whose addresses are IPVS's: kube-proxy's name for it. What is
// for this host comes by IPVS before any socket, so that modes ipvs and userspace do
// not go together.
const IPVSLink = "kube-ipvs0"

// Settings are what every mode must know before it sees a state.
type Settings struct {
	MasqueradeBit uint8          // the bit of the packet mark that asks for masquerading
	Families      []proxy.Family // which to serve; nil: both
	CountBytes    bool           // of Services, and packets, in a mode that counts them only if asked
	ResetTCP      bool           // refuse TCP connections by a reset, not by an ICMP error

	Relay Relay // of a mode that carries connections itself
	IPVS  IPVS  // of mode ipvs
	EBPF  EBPF  // of mode ebpf

	Kernelspace Kernelspace // of mode kernelspace

	// Others tells what other modes left that says who opened loopback; nil:
	// there are none.
	Others func(context.Context) (localnet.Traces, error)
}

// Relay is how a mode goes about that carries connections itself.
type Relay struct {
	Retries        int           // how many other endpoints are tried when one cannot be connected to
	DialTimeout    time.Duration // for each of them
	UDPTimeout     time.Duration // after which a silent UDP session ends
	DrainTimeout   time.Duration // how long open connections may keep a process that is told to stop
	MaxConnections int           // and so many UDP sessions; 0: as many as the limit of open files allows
}

// DefaultRelay is how it goes about unless told otherwise.
func DefaultRelay() Relay {
	return Relay{Retries: 3, DialTimeout: 2 * time.Second, UDPTimeout: time.Minute, DrainTimeout: 25 * time.Second}
}

// IPVS is what kube-proxy's configuration has for mode ipvs only.
type IPVS struct {
	Scheduler    string         // empty: rr
	ExcludeCIDRs []netip.Prefix // virtual servers within are never removed
	StrictARP    bool           // no ARP answers for addresses of other links

	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration // of idle connections; 0: as the kernel has it
}

// EBPF is where mode ebpf meets the host.
type EBPF struct {
	CgroupRoot string // whose sockets are served; empty: the whole cgroup2 hierarchy, where it is mounted
	BPFRoot    string // the folder in a BPF file system where programs and maps are kept
	Fallback   bool   // without the mode where the kernel cannot do it, instead of not at all

	Untracked []netip.Prefix // connections between these addresses, all of them pods', are not tracked unless rules translate them
}

// DefaultEBPF is where it does unless told otherwise.
func DefaultEBPF() EBPF { return EBPF{BPFRoot: "/sys/fs/bpf/sluice"} }

// Kernelspace is what kube-proxy's configuration has for mode kernelspace only.
type Kernelspace struct {
	Network      string     // the HNS network of the pods
	SourceVIP    netip.Addr // what pods see as their client on an overlay network, which needs it
	DSR          bool       // endpoints answer clients of ClusterIPs directly
	RootEndpoint string     // the name of the HNS endpoint where health checks are answered

	// ForwardHealthCheckVIP has health checks at load-balancer addresses answered:
	// those of a Service with a port of its own there, others at HealthzPort (0: not).
	ForwardHealthCheckVIP bool
	HealthzPort           uint16
}

func (s Settings) Served() []proxy.Family {
	if s.Families == nil {
		return proxy.Families[:]
	}
	return s.Families
}

// Mode is one way of programming the kernel.
type Mode struct {
	Name config.ProxyMode

	// Probe returns which of the families the kernel can do, changing nothing.
	// When it can do none, the error says what is missing.
	Probe func(context.Context, Settings) ([]proxy.Family, error)

	// Prepare opens loopback addresses to NodePorts, or closes those that a
	// service proxy opened, for a daemon that may not write the host's settings.
	Prepare func(ctx context.Context, s Settings, opens bool) error

	// Needed says why a host needs this mode though it could do another; empty
	// if it does not. Nil: no host does.
	Needed func(context.Context, Settings) (string, error)

	// Open returns the dataplane. The kernel does nothing new before its Sync.
	// Nil: the mode is of another system, and can be rendered here.
	Open func(context.Context, Settings) (proxy.Dataplane, error)

	// Render writes down what the first Sync of a new dataplane would write, or
	// what of it differs from what the kernel has. It changes nothing and, unless
	// it compares, asks no kernel.
	Render func(context.Context, *Rendering) error

	// Balancing lists the ways of choosing an endpoint that the mode knows, the
	// one first that it takes by itself. Weights says that it can also send some
	// endpoints more connections than others.
	Balancing []proxy.Balancing
	Weights   bool

	// PreservesDestination says that the mode can have endpoints see a LoadBalancer
	// address as their own, which annotation preserve-destination asks for.
	PreservesDestination bool

	// Polls says that nobody tells the mode what others change, so that all is
	// compared once in a sync period.
	Polls bool

	// Drains says that the mode goes on after its last write, for connections that
	// are open, until another daemon has begun.
	Drains bool

	// Flows opens the connections that must be ended when their endpoint goes;
	// nil: the mode ends them itself.
	Flows func() (ct.Interface, error)

	// Unseen names the connections that are not among those of Flows; empty: all are.
	Unseen string

	// Ends opens what tells of connections that connection tracking translated
	// and that end; nil with Flows.
	Ends func() (ct.Ends, error)

	// Traces returns what the mode left that says who opened loopback; nil: it
	// never does.
	Traces func(context.Context) (localnet.Traces, error)

	// Cleanup removes the mode's rules and what kube-proxy's mode of that name
	// left, but for what an open dataplane, of whatever mode, has made its own. It
	// returns what it removed, and goes on after an error.
	Cleanup func(ctx context.Context, s Settings, open proxy.Dataplane) ([]string, error)
}

// Opener returns what opens a dataplane for a Mode: one that is nil after an error.
func Opener[D proxy.Dataplane](open func(context.Context, Settings) (D, error)) func(context.Context, Settings) (proxy.Dataplane, error) {
	return func(ctx context.Context, s Settings) (proxy.Dataplane, error) {
		d, err := open(ctx, s)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
}

// KeepsLoopback reports whether an open dataplane looks after the setting that
// opens loopback.
func KeepsLoopback(open proxy.Dataplane) bool {
	d, ok := open.(interface{ KeepsLoopback() bool })
	return ok && d.KeepsLoopback()
}
