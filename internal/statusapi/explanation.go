package statusapi

// Explanation says what happens to the first packet of a connection, and why. It is
// the response at ExplainPath. The parameter to is required: ADDR:PORT or
// NAMESPACE/NAME[:PORT], the port by name or number. The parameters from, proto and
// in are optional. The parameter port, the client's, makes flows list its connection
// from there first, even if it has ended.
type Explanation struct {
	Packet   ExplainedPacket `json:"packet"`
	Service  *ExplainedPort  `json:"service,omitempty"`  // the service port that the packet is for; nil if there is none
	Frontend *Frontend       `json:"frontend,omitempty"` // the frontend of the service port that the packet is for; nil if there is none

	Verdict string `json:"verdict"` // forward, reject, drop or untouched; unknown before the daemon's first sync
	Reason  Reason `json:"reason"`
	Message string `json:"message"` // the reason in words, about this packet

	Scope          string      `json:"scope,omitempty"`      // which endpoints traffic policy allows: Cluster or Local
	Balancing      string      `json:"balancing,omitempty"`  // how one of the candidates is chosen
	Candidates     []Candidate `json:"candidates,omitempty"` // the endpoints that it may go to; the first 256, and the client itself
	CandidateCount int         `json:"candidateCount,omitempty"`
	Masquerade     string      `json:"masquerade,omitempty"` // why the client's address is or is not masqueraded
	NotUsed        []Endpoint  `json:"notUsed,omitempty"`    // the other endpoints, with the reason for each; the first 256
	NotUsedCount   int         `json:"notUsedCount,omitempty"`
	Affinity       *Affinity   `json:"affinity,omitempty"` // nil if the service port has no session affinity
	Flows          *OpenFlows  `json:"flows,omitempty"`    // nil if they were not read

	Kernel    KernelCheck `json:"kernel"`
	Handshake *Handshake  `json:"handshake,omitempty"` // nil if no connection was tried
	Trace     *Trace      `json:"trace,omitempty"`     // nil if no trace was requested
	Doubts    []Doubt     `json:"doubts,omitempty"`    // the daemon's, except refused service ports
	Notes     []string    `json:"notes,omitempty"`     // assumptions, and what else may matter
	Try       []string    `json:"try,omitempty"`       // what to do if this is not as expected
}

// Fine reports whether there is nothing to fix: the packet is forwarded and, as far
// as it was checked, the kernel forwards it too.
func (e *Explanation) Fine() bool {
	return (e.Reason == Forwarded || e.Reason == RelayedByDaemon) && e.Kernel.State != KernelDiffers && e.Kernel.State != KernelFailed &&
		(e.Handshake == nil || e.Handshake.Error == "") && (e.Trace == nil || e.Trace.DroppedBy == nil && !e.Trace.Bypassed)
}

// ExplainedPacket is the packet that is explained.
type ExplainedPacket struct {
	Protocol  string `json:"protocol"`
	From      string `json:"from,omitempty"` // the client's address; empty if not known
	To        string `json:"to,omitempty"`   // ADDR:PORT; empty if the Service has no address
	Interface string `json:"in,omitempty"`   // the interface it arrives on; empty if this node sends it, or if not given
	Origin    string `json:"origin"`         // the client's origin according to policy: our pod, this node or elsewhere
	Why       string `json:"originReason"`   // why it has this origin
	ToNode    bool   `json:"toNode,omitempty"`
}

// ExplainedPort is the port of a Service that a packet is for.
type ExplainedPort struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Port      string  `json:"port,omitempty"` // the port's name
	Family    string  `json:"family,omitempty"`
	Status    *Status `json:"status,omitempty"` // nil if it has no row here, or without a daemon
}

// Candidate is an endpoint that the packet may go to.
type Candidate struct {
	Address    string  `json:"address"`
	Share      float64 `json:"share"` // of new connections, from 0 to 1
	Local      bool    `json:"local,omitempty"`
	Masquerade bool    `json:"masquerade"`        // the endpoint does not see the client's address
	Reason     string  `json:"reason,omitempty"`  // why it is used although it is not ready
	Hairpin    bool    `json:"hairpin,omitempty"` // the endpoint is the client itself
}

// Affinity is the session affinity of a service port: how long its clients stay
// with an endpoint, and which endpoint this client stays with.
type Affinity struct {
	Seconds  float64 `json:"seconds"`
	Endpoint string  `json:"endpoint,omitempty"` // the endpoint that the kernel remembers for this client; empty if none
	Unknown  string  `json:"unknown,omitempty"`  // why the remembered endpoint is not known
}

// OpenFlows are the connections that the client has open to the same destination.
type OpenFlows struct {
	Total   int        `json:"total"`
	Items   []OpenFlow `json:"items,omitempty"`   // the first of them
	Except  string     `json:"except,omitempty"`  // which connections are not counted
	Unknown string     `json:"unknown,omitempty"` // why they could not be read
}

// OpenFlow is an open connection.
type OpenFlow struct {
	Client   string `json:"client"`          // ADDR:PORT
	Endpoint string `json:"endpoint"`        // ADDR:PORT
	Stale    bool   `json:"stale,omitempty"` // new connections do not go to this endpoint
}

// KernelState is the result of comparing what the kernel has with what was written.
type KernelState string

const (
	KernelAgrees     KernelState = "agrees"
	KernelDiffers    KernelState = "differs"
	KernelFailed     KernelState = "failed" // the kernel could not be read
	KernelNotChecked KernelState = "notChecked"
)

// KernelCheck compares the kernel's objects of a service port, read back, with what
// was written.
type KernelCheck struct {
	State       KernelState        `json:"state"`
	Why         string             `json:"why,omitempty"`         // why the state is failed or notChecked
	Objects     int                `json:"objects,omitempty"`     // how many objects were read
	Differing   int                `json:"differing,omitempty"`   // how many differ from what was written
	Differences []KernelDifference `json:"differences,omitempty"` // the first of them
	Unread      string             `json:"unread,omitempty"`      // objects of the service port that were not read back
}

// KernelDifference is an object that differs from what was written.
type KernelDifference struct {
	Object string `json:"object"`
	Want   string `json:"want,omitempty"` // empty if it should not exist
	Have   string `json:"have,omitempty"` // empty if it is missing
}

// Handshake is the result of a real connection from this node.
type Handshake struct {
	Seconds  float64 `json:"seconds"`            // how long it took
	Endpoint string  `json:"endpoint,omitempty"` // the endpoint that answered, or that a connection which failed was sent to; empty if the kernel does not say
	Error    string  `json:"error,omitempty"`    // why the connection failed
}

// Trace is the path of a real packet through netfilter's rules.
type Trace struct {
	Steps     []TraceStep `json:"steps,omitempty"`
	Endpoint  string      `json:"endpoint,omitempty"`  // ADDR:PORT that rules, or IPVS, sent the packet to; empty if they sent it nowhere else
	DroppedBy *TraceStep  `json:"droppedBy,omitempty"` // the rule that dropped the packet; nil if none did
	Bypassed  bool        `json:"bypassed,omitempty"`  // the packet should be forwarded, but passed no rule that chooses an endpoint
	Unknown   string      `json:"unknown,omitempty"`   // why there is no trace, or what it does not show
}

// TraceStep is a rule that decided about the packet, or the end of a chain.
type TraceStep struct {
	Chain   string `json:"chain"` // family, table and chain
	Handle  uint64 `json:"handle,omitempty"`
	Rule    string `json:"rule,omitempty"` // as nft lists it; only for a rule that drops the packet or may let it bypass ours
	Verdict string `json:"verdict"`
	Ours    bool   `json:"ours,omitempty"` // the rule is the service proxy's
}

// Reason is a machine-readable word for why something happens to a packet. Reasons
// never change: scripts and runbooks may depend on them.
type Reason string

const (
	Forwarded          Reason = "Forwarded"          // the packet goes to an endpoint
	NotSynced          Reason = "NotSynced"          // the kernel does not have the wanted state yet
	NoSuchFrontend     Reason = "NoSuchFrontend"     // no Service has the address and port
	PortNotOfService   Reason = "PortNotOfService"   // the address is the ClusterIP of a Service that has no such port
	UnallocatedAddress Reason = "UnallocatedAddress" // the address is in the range of ClusterIPs, and no Service has it
	NodePortClosedHere Reason = "NodePortClosedHere" // the port is a NodePort, but not at this address of the node
	RelayedByDaemon    Reason = "RelayedByDaemon"    // the rules leave the packet to the daemon, which relays it to an endpoint
	SourceRange        Reason = "SourceRange"        // the client is in none of loadBalancerSourceRanges
	NoEndpoints        Reason = "NoEndpoints"        // the Service has no endpoints, or none that could be used even if ready
	NotReady           Reason = "NotReady"           // the Service has endpoints, and none is ready
	NoLocalEndpoint    Reason = "NoLocalEndpoint"    // the traffic policy is Local, and no usable endpoint is on this node
	PortNameMismatch   Reason = "PortNameMismatch"   // the Service's EndpointSlices have no port of that name
	LostClaim          Reason = "LostClaim"          // another Service claims the same address and port, and has it
	RefusedByKernel    Reason = "RefusedByKernel"    // the kernel refuses the service port
	Headless           Reason = "Headless"           // the Service has no address
	ExternalName       Reason = "ExternalName"       // the Service is an alias in DNS, and has no address
	NoPorts            Reason = "NoPorts"            // the Service has no ports
	FamilyNotServed    Reason = "FamilyNotServed"    // this node does not serve the address's family
	OtherProxy         Reason = "OtherProxy"         // a label assigns the Service to another proxy
)

// Reasons lists all reasons. Only Forwarded and RelayedByDaemon need no action.
var Reasons = [...]Reason{
	Forwarded, NotSynced, NoSuchFrontend, PortNotOfService, UnallocatedAddress, NodePortClosedHere, SourceRange,
	NoEndpoints, NotReady, NoLocalEndpoint, PortNameMismatch, LostClaim, RefusedByKernel, Headless,
	ExternalName, NoPorts, FamilyNotServed, OtherProxy, RelayedByDaemon,
}
