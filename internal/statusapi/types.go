package statusapi

import "time"

// Version is that of the API, and the first part of every path.
const Version = "v1"

// The paths. Lists take limit and continue, and answer with at most MaxPage
// items and where to go on.
const (
	NodePath     = "/v1/node"
	ServicesPath = "/v1/services" // ServiceList; with /NAMESPACE/NAME a Service
	ProblemsPath = "/v1/problems" // ProblemList
	ChangesPath  = "/v1/changes"  // ChangeList, the newest first
	TrafficPath  = "/v1/traffic"  // TrafficList
	ExplainPath  = "/v1/explain"  // Explanation
)

// How many items an answer has: DefaultPage if nothing was asked for.
const (
	DefaultPage = 100
	MaxPage     = 500
)

// Node is the daemon and the node it serves.
type Node struct {
	Name      string    `json:"name"`
	Zone      string    `json:"zone,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`
	Version   string    `json:"version"`
	Mode      string    `json:"mode"`
	Families  []string  `json:"families"`
	Source    string    `json:"source"` // where objects come from
	Started   time.Time `json:"started"`
	Now       time.Time `json:"now"` // the daemon's clock, for those times that clients compute

	Health   Health    `json:"health"`
	Sync     Sync      `json:"sync"`
	Counts   Counts    `json:"counts"`
	Tracking *Tracking `json:"connectionTracking,omitempty"` // nil: the kernel does not tell
}

// Health is what the health server would answer now.
type Health struct {
	Healthy bool   `json:"healthy"`
	Live    bool   `json:"live"`
	Reason  string `json:"reason,omitempty"` // why not
}

// Sync is how the kernel stands to what is wanted.
type Sync struct {
	Done    bool       `json:"done"`              // the kernel has been made right once
	Last    *time.Time `json:"last,omitempty"`    // when the last sync ended that went through
	Seconds float64    `json:"seconds,omitempty"` // how long it took
	Error   string     `json:"error,omitempty"`   // why the last one failed
	Reason  string     `json:"reason,omitempty"`  // what is waited for before the first
}

// InForce reports whether everything known is in force. What the kernel
// refuses, or is yet to be told, is not.
func (n *Node) InForce() bool {
	return n.Sync.Done && n.Sync.Error == "" && n.Counts.Pending == 0 && n.Counts.Refused == 0
}

// Counts are how much there is of everything.
type Counts struct {
	Services  int `json:"services"`
	Ports     int `json:"ports"` // of Services, in each family
	Endpoints int `json:"endpoints"`
	Pending   int `json:"pending"` // service ports that are not yet as wanted
	Refused   int `json:"refused"` // service ports that the kernel does not take
	Problems  int `json:"problems"`
}

// Tracking is how full the kernel's table of connections is.
type Tracking struct {
	Entries int `json:"entries"`
	Limit   int `json:"limit"`
}

// State is how a service port, or all ports of a Service, stand in the kernel.
type State string

// The states, the worst last.
const (
	InForce State = "InForce"
	Pending State = "Pending" // something newer is wanted
	Refused State = "Refused" // the kernel does not take what is wanted
)

// ServiceList is a page of Services.
type ServiceList struct {
	Items    []ServiceSummary `json:"items"`
	Total    int              `json:"total"`              // that match, on all pages
	Continue string           `json:"continue,omitempty"` // where the next page begins; empty: there is none
}

// ServiceSummary is a Service in one line.
type ServiceSummary struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Address   string    `json:"address,omitempty"`  // the first, the ClusterIP if there is one
	External  []string  `json:"external,omitempty"` // LoadBalancer and external addresses
	Ports     []string  `json:"ports"`              // like 80/TCP or 80:30080/TCP
	Used      int       `json:"used"`               // endpoints that a connection may go to from here
	Endpoints int       `json:"endpoints"`          // endpoints that there are
	State     State     `json:"state"`
	Reason    string    `json:"reason,omitempty"` // why it is not in force
	Since     time.Time `json:"since"`            // when it last changed in the kernel
	Problems  int       `json:"problems,omitempty"`
	Traffic   *Traffic  `json:"traffic,omitempty"` // nil: not counted
}

// Troubled reports whether somebody should look at the Service.
func (s *ServiceSummary) Troubled() bool { return s.State == Refused || s.Problems > 0 || s.Used == 0 }

// Service is one Service with all that is known of it.
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
	AllowFrom *[]string  `json:"allowFrom,omitempty"` // LoadBalancer clients; nil: everyone
	Status    Status     `json:"status"`
	Endpoints []Endpoint `json:"endpoints"`
	Total     int        `json:"endpointCount"`      // on all pages
	Continue  string     `json:"continue,omitempty"` // where the next page of endpoints begins
}

// Frontend is one address and port by which a service port is reached.
type Frontend struct {
	Kind    string `json:"kind"`
	Address string `json:"address"`          // IP:PORT; a NodePort's is that of the node's addresses
	LostTo  string `json:"lostTo,omitempty"` // the Service that has it instead
}

// Status is how a service port stands in the kernel.
type Status struct {
	State   State      `json:"state"`
	Since   *time.Time `json:"since,omitempty"`   // when what is in force came
	Pending *time.Time `json:"pending,omitempty"` // since when something else is wanted
	Reason  string     `json:"reason,omitempty"`  // why the kernel refuses that
	NextTry *time.Time `json:"nextTry,omitempty"`
}

// Endpoint is one endpoint of a service port, as this node sees it.
type Endpoint struct {
	Address     string   `json:"address"` // IP:PORT
	Used        bool     `json:"used"`    // by traffic that follows no Local policy, or is let follow one
	UsedLocal   bool     `json:"usedLocal,omitempty"`
	Local       bool     `json:"local,omitempty"` // on this node
	Ready       bool     `json:"ready"`
	Serving     bool     `json:"serving"`
	Terminating bool     `json:"terminating,omitempty"`
	Weight      int      `json:"weight,omitempty"`
	Zones       []string `json:"hintedZones,omitempty"`
	Slice       string   `json:"endpointSlice,omitempty"`
	Reason      string   `json:"reason,omitempty"` // why it is not used
	Traffic     *Traffic `json:"traffic,omitempty"`
}

// Problem is something in an object that could not be used.
type Problem struct {
	Object string `json:"object"` // the kind and the name, like "Service ns/web"
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

// Change is a service port that came, changed or went in the kernel.
type Change struct {
	Number      uint64    `json:"number"` // grows by one with each change
	Time        time.Time `json:"time"`   // when it was in force
	What        string    `json:"what"`   // Added, Changed or Removed
	ServicePort string    `json:"servicePort"`
	Detail      string    `json:"detail,omitempty"`
	Seconds     float64   `json:"seconds"` // from when the daemon heard of it until then
}

// ChangeList has the last changes, the newest first.
type ChangeList struct {
	Items    []Change `json:"items"`
	Total    int      `json:"total"`
	Continue string   `json:"continue,omitempty"`
}

// Traffic is what was counted. Whatever is nil is not counted here.
type Traffic struct {
	Connections *uint64           `json:"connections,omitempty"`
	Active      *uint64           `json:"activeConnections,omitempty"`
	BytesIn     *uint64           `json:"bytesIn,omitempty"`  // from clients to endpoints
	BytesOut    *uint64           `json:"bytesOut,omitempty"` // from endpoints to clients
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

// TrafficList is a page of traffic, and when it was counted.
type TrafficList struct {
	Items    []PortTraffic `json:"items"`
	Counted  time.Time     `json:"counted"`
	Off      string        `json:"off,omitempty"` // why nothing is counted
	Total    int           `json:"total"`
	Continue string        `json:"continue,omitempty"`
}

// Error is the answer to a request that could not be answered.
type Error struct {
	Message string `json:"error"`
}
