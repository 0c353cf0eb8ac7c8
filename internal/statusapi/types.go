package statusapi

import (
	"net/url"
	"slices"
	"time"
)

// Version is the version of the API, and the first element of every path.
const Version = "v1"

// The paths. Lists accept the parameters limit and continue. A response has at most
// MaxPage items, and the value of continue that requests the next ones.
const (
	NodePath     = "/v1/node"
	ServicesPath = "/v1/services" // ServiceList; with /NAMESPACE/NAME a Service
	ProblemsPath = "/v1/problems" // ProblemList
	ChangesPath  = "/v1/changes"  // ChangeList, the newest first
	TrafficPath  = "/v1/traffic"  // TrafficList
	ExplainPath  = "/v1/explain"  // Explanation
)

// ServicePath returns the path of one Service.
func ServicePath(namespace, name string) string {
	return ServicesPath + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// How many items a response has: DefaultPage if the request has no limit, and
// never more than MaxPage.
const (
	DefaultPage = 100
	MaxPage     = 500
)

// Node describes the daemon and the node that it serves.
type Node struct {
	Name      string    `json:"name"`
	Zone      string    `json:"zone,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`
	Version   string    `json:"version"`
	Mode      string    `json:"mode"`
	Families  []string  `json:"families"`
	Source    string    `json:"source"` // where objects come from
	Started   time.Time `json:"started"`
	Now       time.Time `json:"now"` // the daemon's clock, so that clients can compute how long ago a time was

	Verdict  Verdict   `json:"verdict"` // the worst of what follows
	Health   Health    `json:"health"`
	Sync     Sync      `json:"sync"`
	Counts   Counts    `json:"counts"`
	Doubts   []Doubt   `json:"doubts,omitempty"`             // errors first
	Tracking *Tracking `json:"connectionTracking,omitempty"` // nil if it cannot be read
}

// Health is what the health server would respond now.
type Health struct {
	Healthy bool   `json:"healthy"`
	Live    bool   `json:"live"`
	Reason  string `json:"reason,omitempty"` // why it is not healthy
}

// Sync says whether the kernel has the wanted state.
type Sync struct {
	Done    bool       `json:"done"`              // the first full sync has succeeded
	Last    *time.Time `json:"last,omitempty"`    // when the last successful sync ended
	Seconds float64    `json:"seconds,omitempty"` // how long it took
	Error   string     `json:"error,omitempty"`   // why the last sync failed; empty if it succeeded
	Reason  string     `json:"reason,omitempty"`  // what the first sync is waiting for
}

// InForce reports whether everything that the objects want is in force: nothing is
// pending, nothing was refused by the kernel, and no doubt is an error.
func (n *Node) InForce() bool {
	return n.Sync.Done && n.Sync.Error == "" && n.Counts.Pending == 0 && n.Counts.Refused == 0 &&
		!slices.ContainsFunc(n.Doubts, func(d Doubt) bool { return d.Severity == DoubtError })
}

// Doubt is a reason not to trust that Services work as their objects say.
type Doubt struct {
	Kind     string        `json:"kind"` // a word that never changes, for example RulesChanged
	Severity DoubtSeverity `json:"severity"`
	Object   string        `json:"object,omitempty"` // what it is about; empty: the node
	Reason   string        `json:"reason"`
	Since    time.Time     `json:"since"`
	Next     string        `json:"next,omitempty"`   // what the daemon does next, or what to do
	NextAt   *time.Time    `json:"nextAt,omitempty"` // when it does that
}

// DoubtSeverity says what a doubt means.
type DoubtSeverity string

const (
	DoubtError   DoubtSeverity = "Error"   // the kernel may not do what the objects say
	DoubtWarning DoubtSeverity = "Warning" // the kernel does what the objects say, as far as the daemon knows
)

// Counts are the numbers of objects on the node.
type Counts struct {
	Services    int `json:"services"`
	Unreachable int `json:"unreachable"` // Services none of whose endpoints can be used from this node
	Ports       int `json:"ports"`       // a port of a Service counts once per family
	Endpoints   int `json:"endpoints"`
	Pending     int `json:"pending"` // service ports that are not yet in force as wanted
	Refused     int `json:"refused"` // service ports that the kernel refuses
	Problems    int `json:"problems"`
}

// Tracking is the usage of the kernel's connection tracking table.
type Tracking struct {
	Entries int `json:"entries"`
	Limit   int `json:"limit"`
}

// State says whether a service port, or every port of a Service, is in force in
// the kernel, and whether a Service can be reached.
type State string

// The states, the worst last. Those without endpoints are of Services only, and their
// words are those of the reasons.
const (
	InForce              State = "InForce"
	StateNoLocalEndpoint State = State(NoLocalEndpoint) // it is in force, and only endpoints on other nodes can be used, which its policy excludes
	StateNoEndpoints     State = State(NoEndpoints)     // it is in force, and no endpoint can be used
	Pending              State = "Pending"              // a newer version is wanted, and not yet in the kernel
	Refused              State = "Refused"              // the kernel refused the wanted version
)

// States has all states, the worst last.
var States = [...]State{InForce, StateNoLocalEndpoint, StateNoEndpoints, Pending, Refused}

// ServiceList is a page of Services.
type ServiceList struct {
	Items    []ServiceSummary `json:"items"`
	Total    int              `json:"total"`              // how many match, on all pages
	Continue string           `json:"continue,omitempty"` // requests the next page; empty on the last
}

// ServiceSummary is what a list says about a Service.
type ServiceSummary struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Address   string    `json:"address,omitempty"`  // the first ClusterIP
	External  []string  `json:"external,omitempty"` // LoadBalancer addresses and external IPs
	Ports     []string  `json:"ports"`              // for example 80/TCP or 80:30080/TCP
	Used      int       `json:"used"`               // endpoints that connections from this node may go to
	Endpoints int       `json:"endpoints"`          // all endpoints
	State     State     `json:"state"`
	Reason    string    `json:"reason,omitempty"` // why the kernel refuses it
	Since     time.Time `json:"since"`            // when it last changed in the kernel
	Problems  int       `json:"problems,omitempty"`
	Traffic   *Traffic  `json:"traffic,omitempty"` // nil if nothing was counted
}

// Troubled reports whether the Service needs attention: the kernel refuses it, one
// of its objects has a problem, or no endpoint can be used.
func (s *ServiceSummary) Troubled() bool { return s.State == Refused || s.Problems > 0 || s.Used == 0 }

// Service is everything that the daemon knows about one Service.
type Service struct {
	ServiceSummary
	Rows  []Port    `json:"rows"`
	Found []Problem `json:"found,omitempty"` // problems of the Service and its EndpointSlices
}

// Port is one port of a Service in one family.
type Port struct {
	Name      string     `json:"name,omitempty"`
	Protocol  string     `json:"protocol"`
	Family    string     `json:"family"`
	Frontends []Frontend `json:"frontends"`
	Internal  string     `json:"internalTrafficPolicy"`
	External  string     `json:"externalTrafficPolicy"`
	Balancing string     `json:"balancing,omitempty"`
	Affinity  float64    `json:"affinitySeconds,omitempty"`
	AllowFrom *[]string  `json:"allowFrom,omitempty"` // source ranges of LoadBalancer clients; nil if all are allowed
	Status    Status     `json:"status"`
	Endpoints []Endpoint `json:"endpoints"`
	Total     int        `json:"endpointCount"`      // on all pages
	Continue  string     `json:"continue,omitempty"` // requests the next page of endpoints; empty on the last
}

// Frontend is an address and port that clients of a service port connect to.
type Frontend struct {
	Kind    string `json:"kind"`
	Address string `json:"address"`          // IP:PORT; a NodePort has the unspecified address
	LostTo  string `json:"lostTo,omitempty"` // the Service that claims the same address and port, and has it
}

// Status says whether a service port is in force in the kernel.
type Status struct {
	State   State      `json:"state"`
	Since   *time.Time `json:"since,omitempty"`   // when the version in force was written
	Pending *time.Time `json:"pending,omitempty"` // since when a newer version is wanted
	Reason  string     `json:"reason,omitempty"`  // why the kernel refuses the newer version
	NextTry *time.Time `json:"nextTry,omitempty"` // when the refused version is tried again
}

// Endpoint is one endpoint of a service port, as this node sees it.
type Endpoint struct {
	Address     string   `json:"address"`             // IP:PORT
	Used        bool     `json:"used"`                // it is in the Cluster list, for traffic that policy Local does not apply to
	UsedLocal   bool     `json:"usedLocal,omitempty"` // it is in the Local list, for traffic of policy Local
	Local       bool     `json:"local,omitempty"`     // on this node
	Ready       bool     `json:"ready"`
	Serving     bool     `json:"serving"`
	Terminating bool     `json:"terminating,omitempty"`
	Weight      int      `json:"weight,omitempty"`
	Zones       []string `json:"hintedZones,omitempty"`
	Slice       string   `json:"endpointSlice,omitempty"`
	Reason      string   `json:"reason,omitempty"` // why it is not used
	Traffic     *Traffic `json:"traffic,omitempty"`
}

// Problem is a part of an object that the daemon cannot use.
type Problem struct {
	Object string `json:"object"` // kind and name, for example "Service ns/web"
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"`
}

func (p Problem) String() string {
	if p.Field == "" {
		return p.Object + ": " + p.Reason
	}
	return p.Object + ": " + p.Field + ": " + p.Reason
}

// ProblemList is a page of problems.
type ProblemList struct {
	Items    []Problem `json:"items"`
	Total    int       `json:"total"`
	Continue string    `json:"continue,omitempty"`
}

// Change records that a service port was added, changed or removed in the kernel.
type Change struct {
	Number      uint64    `json:"number"` // one more than that of the change before
	Time        time.Time `json:"time"`   // when it came into force
	What        string    `json:"what"`   // Added, Changed or Removed
	ServicePort string    `json:"servicePort"`
	Detail      string    `json:"detail,omitempty"`
	Seconds     float64   `json:"seconds"` // from when the daemon received it until it was in force
}

// ChangeList is a page of the latest changes, the newest first.
type ChangeList struct {
	Items    []Change `json:"items"`
	Total    int      `json:"total"`
	Continue string   `json:"continue,omitempty"`
}

// Traffic has the counters of a Service, a port or an endpoint. A counter is nil if
// the mode or the kernel's settings do not allow to count it.
type Traffic struct {
	Connections *uint64           `json:"connections,omitempty"`
	Active      *uint64           `json:"activeConnections,omitempty"`
	Failed      *uint64           `json:"failedConnections,omitempty"` // that the endpoint refused or did not answer
	BytesIn     *uint64           `json:"bytesIn,omitempty"`           // from clients to endpoints
	BytesOut    *uint64           `json:"bytesOut,omitempty"`          // from endpoints to clients
	PacketsIn   *uint64           `json:"packetsIn,omitempty"`
	PacketsOut  *uint64           `json:"packetsOut,omitempty"`
	Refused     map[string]uint64 `json:"refusedPackets,omitempty"` // by reason
}

// PortTraffic is the traffic of one port of a Service, or of one endpoint of it.
type PortTraffic struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	Protocol  string `json:"protocol"`
	Endpoint  string `json:"endpoint,omitempty"`
	Traffic
}

// TrafficList is a page of traffic, and when the counters were read.
type TrafficList struct {
	Items    []PortTraffic `json:"items"`
	Counted  time.Time     `json:"counted"`
	Off      string        `json:"off,omitempty"` // why nothing is counted; empty if traffic is counted
	Total    int           `json:"total"`
	Continue string        `json:"continue,omitempty"`
}

// Error is the body of every response other than 200 OK.
type Error struct {
	Message string `json:"error"`
}
