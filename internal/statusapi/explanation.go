package statusapi

// Explanation is what happens to the first packet of a connection, and why.
// Asked for by ExplainPath with to (ADDR:PORT or NAMESPACE/NAME[:PORT], the port
// by name or number), and if need be from, proto and in.
type Explanation struct {
	Packet   ExplainedPacket `json:"packet"`
	Service  *ExplainedPort  `json:"service,omitempty"`  // whose packet it is, or was meant to be; nil: nobody's
	Frontend *Frontend       `json:"frontend,omitempty"` // by which that is reached; nil: by none

	Verdict string `json:"verdict"` // forward, reject, drop or untouched
	Reason  Reason `json:"reason"`
	Message string `json:"message"` // the reason in words, for this packet

	Scope          string      `json:"scope,omitempty"`      // which endpoints traffic policy allows: Cluster or Local
	Balancing      string      `json:"balancing,omitempty"`  // how one of the candidates is chosen
	Candidates     []Candidate `json:"candidates,omitempty"` // where it may go; of very many the first, and the client itself
	CandidateCount int         `json:"candidateCount,omitempty"`
	Masquerade     string      `json:"masquerade,omitempty"` // why the client's address is or is not hidden from them
	NotUsed        []Endpoint  `json:"notUsed,omitempty"`    // the other endpoints, each with the reason; of very many the first
	NotUsedCount   int         `json:"notUsedCount,omitempty"`
	Affinity       *Affinity   `json:"affinity,omitempty"` // nil: clients are not remembered
	Flows          *OpenFlows  `json:"flows,omitempty"`    // nil: not looked at

	Kernel    KernelCheck `json:"kernel"`
	Handshake *Handshake  `json:"handshake,omitempty"` // nil: none was tried
	Trace     *Trace      `json:"trace,omitempty"`     // nil: none was asked for
	Notes     []string    `json:"notes,omitempty"`     // what was assumed, and what else may matter
	Try       []string    `json:"try,omitempty"`       // what to do about it
}

// Fine reports whether nothing is to be found: the packet is forwarded, and as
// far as was looked the kernel does the same.
func (e *Explanation) Fine() bool {
	return e.Reason == Forwarded && e.Kernel.State != KernelDiffers && e.Kernel.State != KernelFailed &&
		(e.Handshake == nil || e.Handshake.Error == "") && (e.Trace == nil || e.Trace.DroppedBy == nil && !e.Trace.Bypassed)
}

// ExplainedPacket is the packet in question.
type ExplainedPacket struct {
	Protocol  string `json:"protocol"`
	From      string `json:"from,omitempty"` // the client's address; empty: not known
	To        string `json:"to,omitempty"`   // ADDR:PORT; empty: the Service has no address
	Interface string `json:"in,omitempty"`   // on which it comes in; empty: the node sends it, or it was not said
	Origin    string `json:"origin"`         // our pod, this node or elsewhere: who policy takes the client for
	Why       string `json:"originReason"`   // why it takes it for that
	ToNode    bool   `json:"toNode,omitempty"`
}

// ExplainedPort is the port of a Service that a packet is for.
type ExplainedPort struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Port      string  `json:"port,omitempty"` // the port's name
	Family    string  `json:"family,omitempty"`
	Status    *Status `json:"status,omitempty"` // nil: it has no row here, or no kernel was asked
}

// Candidate is an endpoint that the packet may go to.
type Candidate struct {
	Address    string  `json:"address"`
	Share      float64 `json:"share"` // of new connections, from 0 to 1
	Local      bool    `json:"local,omitempty"`
	Masquerade bool    `json:"masquerade"`        // it does not see the client's address
	Reason     string  `json:"reason,omitempty"`  // why it is used though it is not ready
	Hairpin    bool    `json:"hairpin,omitempty"` // it is the client itself
}

// Affinity is how long clients of the Service stay with an endpoint, and with
// which one this client does.
type Affinity struct {
	Seconds  float64 `json:"seconds"`
	Endpoint string  `json:"endpoint,omitempty"` // that the kernel remembers for this client; empty: none
	Unknown  string  `json:"unknown,omitempty"`  // why that is not known
}

// OpenFlows are the connections that the client has open to the same address.
type OpenFlows struct {
	Total   int        `json:"total"`
	Items   []OpenFlow `json:"items,omitempty"`   // the first of them
	Except  string     `json:"except,omitempty"`  // which of them are not counted
	Unknown string     `json:"unknown,omitempty"` // why they are not known
}

// OpenFlow is one of them.
type OpenFlow struct {
	Client   string `json:"client"`          // ADDR:PORT
	Endpoint string `json:"endpoint"`        // ADDR:PORT
	Stale    bool   `json:"stale,omitempty"` // new connections do not go there
}

// KernelState says whether the kernel has what it was given.
type KernelState string

const (
	KernelAgrees     KernelState = "agrees"
	KernelDiffers    KernelState = "differs"
	KernelFailed     KernelState = "failed"     // it could not be read
	KernelNotChecked KernelState = "notChecked" // nobody looked
)

// KernelCheck is how the kernel's objects of the service port, read back,
// compare to what was written.
type KernelCheck struct {
	State       KernelState        `json:"state"`
	Why         string             `json:"why,omitempty"`         // why it was not checked, or could not be
	Objects     int                `json:"objects,omitempty"`     // how many were read
	Differing   int                `json:"differing,omitempty"`   // how many are not as they were written
	Differences []KernelDifference `json:"differences,omitempty"` // the first of them
	Unread      string             `json:"unread,omitempty"`      // what of the service port was not read back
}

// KernelDifference is one object that is not as it was written.
type KernelDifference struct {
	Object string `json:"object"`
	Want   string `json:"want,omitempty"`
	Have   string `json:"have,omitempty"` // empty: it is missing
}

// Handshake is what came of a real connection from this node.
type Handshake struct {
	Seconds  float64 `json:"seconds"`            // that it took
	Endpoint string  `json:"endpoint,omitempty"` // that answered, as far as the kernel tells
	Error    string  `json:"error,omitempty"`    // why there was none
}

// Trace is the way of a real packet through the rules of netfilter.
type Trace struct {
	Steps     []TraceStep `json:"steps,omitempty"`
	DroppedBy *TraceStep  `json:"droppedBy,omitempty"` // the rule that ended it; nil: none did
	Bypassed  bool        `json:"bypassed,omitempty"`  // it is to be forwarded, and no rule that chooses an endpoint saw it
	Unknown   string      `json:"unknown,omitempty"`   // why there is none, or what it does not show
}

// TraceStep is a rule that decided about the packet, or the end of a chain.
type TraceStep struct {
	Chain   string `json:"chain"` // the family, the table and the chain
	Handle  uint64 `json:"handle,omitempty"`
	Rule    string `json:"rule,omitempty"` // as the nft program lists it, of one that drops or that may have bypassed ours
	Verdict string `json:"verdict"`
	Ours    bool   `json:"ours,omitempty"` // the rule is of the service proxy
}

// Reason is why a packet fares as it does. Reasons are stable: scripts and
// runbooks may depend on them.
type Reason string

const (
	Forwarded          Reason = "Forwarded"          // all is well
	NotSynced          Reason = "NotSynced"          // the kernel has not been told yet
	NoSuchFrontend     Reason = "NoSuchFrontend"     // no Service has the address
	PortNotOfService   Reason = "PortNotOfService"   // the address is a Service's ClusterIP, the port is not its
	UnallocatedAddress Reason = "UnallocatedAddress" // the address is from the Services' range, and nobody's
	NodePortClosedHere Reason = "NodePortClosedHere" // the port is a NodePort, but not on this address
	SourceRange        Reason = "SourceRange"        // the client is in none of loadBalancerSourceRanges
	NoEndpoints        Reason = "NoEndpoints"        // the Service has no endpoints that can be used, ready or not
	NotReady           Reason = "NotReady"           // it has some, and none is ready
	NoLocalEndpoint    Reason = "NoLocalEndpoint"    // it has some, and the policy wants one on this node
	PortNameMismatch   Reason = "PortNameMismatch"   // its EndpointSlices have no port of that name
	LostClaim          Reason = "LostClaim"          // another Service has the address
	RefusedByKernel    Reason = "RefusedByKernel"    // the kernel does not take the service port
	Headless           Reason = "Headless"           // the Service has no address at all
	NoPorts            Reason = "NoPorts"            // it has no ports
	FamilyNotServed    Reason = "FamilyNotServed"    // this node does not serve the address's family
	OtherProxy         Reason = "OtherProxy"         // its label gives it to another proxy
)

// Reasons lists all reasons, the fine one first.
var Reasons = [...]Reason{
	Forwarded, NotSynced, NoSuchFrontend, PortNotOfService, UnallocatedAddress, NodePortClosedHere, SourceRange,
	NoEndpoints, NotReady, NoLocalEndpoint, PortNameMismatch, LostClaim, RefusedByKernel, Headless,
	NoPorts, FamilyNotServed, OtherProxy,
}
