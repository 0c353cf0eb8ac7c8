package conformance

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// table is one file of cases.
type table struct {
	Groups   []*Group `json:"groups"`
	Stateful []*Story `json:"stateful"`
}

// Group is a set of objects and the packets that are sent while they are in
// force.
type Group struct {
	ID    string   `json:"id"`
	Title string   `json:"title"`
	Modes []string `json:"modes"` // which modes it applies to; none: all
	World
	Phases []Phase `json:"phases"`
	Cases  []*Case `json:"cases"`
}

// World is what the resolver is told.
type World struct {
	Config     Config            `json:"config"`
	NodeLabels map[string]string `json:"node_labels"`
	Services   []*Service        `json:"services"`
	Slices     []*Slice          `json:"slices"`
}

// Config is how the proxy is set up; the zero value is the table's default.
type Config struct {
	DetectLocal       string        `json:"detect_local"` // cluster-cidr (default), node-cidr, bridge, prefix, none
	MasqueradeAll     bool          `json:"masquerade_all"`
	LocalhostNodePort *bool         `json:"localhost_nodeports"` // none: in mode iptables only
	NodePortAddresses nodePortAddrs `json:"nodeport_addresses"`
	ServiceCIDRs      []string      `json:"service_cidrs"` // none: the table's
}

// nodePortAddrs is "primary", "all" or a list of CIDRs. The zero value is the
// mode's default.
type nodePortAddrs struct {
	Word  string
	CIDRs []netip.Prefix
}

func (n *nodePortAddrs) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &n.CIDRs) == nil {
		return nil
	}
	if err := json.Unmarshal(b, &n.Word); err != nil {
		return err
	}
	if n.Word != "primary" && n.Word != "all" {
		return fmt.Errorf("nodeport_addresses is %q, not primary, all or a list", n.Word)
	}
	return nil
}

// Service is a Service in short. The type is ClusterIP if it is not said.
type Service struct {
	Name                string    `json:"name"` // namespace/name
	Type                string    `json:"type"`
	Family              string    `json:"family"`
	IPFamilies          []string  `json:"ipFamilies"`
	ClusterIP           string    `json:"clusterIP"`
	ClusterIPs          []string  `json:"clusterIPs"`
	ExternalIPs         []string  `json:"externalIPs"`
	LBIngress           []Ingress `json:"lbIngress"`
	SourceRanges        []string  `json:"sourceRanges"`
	ETP                 string    `json:"etp"`
	ITP                 string    `json:"itp"`
	HealthCheckNodePort int32     `json:"healthCheckNodePort"`
	Affinity            *Affinity `json:"affinity"`
	Ports               []Port    `json:"ports"`
	Age                 int       `json:"age"` // an older Service wins an address that two claim
}

// Ingress is an address of a load balancer.
type Ingress struct {
	IP       string `json:"ip"`
	Hostname string `json:"hostname"`
	IPMode   string `json:"ipMode"`
}

// Affinity asks for ClientIP affinity.
type Affinity struct {
	ClientIPTimeoutSeconds int32 `json:"clientIPTimeoutSeconds"`
}

// Port is a port of a Service or, without the last two fields, of a slice.
type Port struct {
	Name       string `json:"name"`
	Proto      string `json:"proto"` // TCP if it is not said
	Port       *int32 `json:"port"`
	TargetPort *int32 `json:"targetPort"`
	NodePort   int32  `json:"nodePort"`
}

// Slice is an EndpointSlice in short. Its name follows from its place in the
// list unless it is said.
type Slice struct {
	Name        string     `json:"name"`
	Service     string     `json:"service"`
	AddressType string     `json:"addressType"` // that of the first endpoint if it is not said
	Ports       []Port     `json:"ports"`
	Endpoints   []Endpoint `json:"endpoints"`
}

// Endpoint is an endpoint in short; what is not said is nil in the API object.
type Endpoint struct {
	IP             string   `json:"ip"`
	ExtraAddresses []string `json:"extra_addresses"`
	Node           string   `json:"node"`
	Place          string   `json:"place"` // where the pod really is, if not on Node
	Ready          *bool    `json:"ready"`
	Serving        *bool    `json:"serving"`
	Terminating    *bool    `json:"terminating"`
	ZoneHints      []string `json:"zoneHints"`
	NodeHints      []string `json:"nodeHints"`
}

// Phase changes a group's objects. The phase "initial" changes nothing.
type Phase struct {
	Name           string     `json:"name"`
	DeleteSlices   names      `json:"delete_slices"`
	DeleteServices names      `json:"delete_services"`
	Services       []*Service `json:"services"` // new or changed
	Slices         []*Slice   `json:"slices"`   // new or changed, by name

	NodeLabels map[string]string `json:"node_labels"` // if they change
}

// names is a list of names, or the word all.
type names struct {
	All  bool
	List []string
}

func (n *names) UnmarshalJSON(b []byte) error {
	if string(b) == `"all"` {
		n.All = true
		return nil
	}
	return json.Unmarshal(b, &n.List)
}

func (n names) has(name string) bool { return n.All || slices.Contains(n.List, name) }

// Case is one packet.
type Case struct {
	ID       string            `json:"id"`
	Phase    string            `json:"phase"`
	From     Place             `json:"from"`
	Src      netip.Addr        `json:"src"` // if it is not said, the table's client at that place
	Dst      netip.Addr        `json:"dst"`
	DPort    uint16            `json:"dport"`
	Proto    proto             `json:"proto"`
	Expect   Expect            `json:"expect"`
	ExpectIn map[string]Expect `json:"expect_in"` // by mode, where modes may differ
	Modes    []string          `json:"modes"`
	Note     string            `json:"note"`
}

// in returns what is expected in a mode.
func (c *Case) in(mode string) Expect {
	if e, ok := c.ExpectIn[mode]; ok {
		return e
	}
	return c.Expect
}

// to returns where the packet is sent to.
func (c *Case) to() netip.AddrPort { return netip.AddrPortFrom(c.Dst, c.DPort) }

// Place is where a packet comes from.
type Place string

// The places.
const (
	FromPod       Place = "pod"              // a pod on this node
	FromSelf      Place = "pod-self"         // an endpoint on this node
	FromRemotePod Place = "remote-pod"       // a pod on another node
	FromNode      Place = "node"             // the node's own stack
	FromLocalhost Place = "localhost"        // the node, from a loopback address
	FromVIP       Place = "lb-vip"           // the node, from an address that is bound to it for this case
	FromOutside   Place = "external"         // the outside world
	FromBlocked   Place = "external-blocked" // the same, from an address that no source range has
)

func (p Place) onNode() bool { return p == FromNode || p == FromLocalhost || p == FromVIP }
func (p Place) onPod() bool  { return p == FromPod || p == FromSelf }
func (p Place) outside() bool {
	return p == FromOutside || p == FromBlocked
}

// proto is a protocol as the API spells it. Zero stands for TCP.
type proto proxy.Protocol

func (p *proto) UnmarshalJSON(b []byte) error {
	var word string
	if err := json.Unmarshal(b, &word); err != nil {
		return err
	}
	parsed, err := parseProtocol(word)
	*p = proto(parsed)
	return err
}

func (p proto) protocol() proxy.Protocol {
	if p == 0 {
		return proxy.TCP
	}
	return proxy.Protocol(p)
}

func parseProtocol(word string) (proxy.Protocol, error) {
	switch word {
	case "", "TCP":
		return proxy.TCP, nil
	case "UDP":
		return proxy.UDP, nil
	case "SCTP":
		return proxy.SCTP, nil
	default:
		return 0, fmt.Errorf("protocol %q is unknown", word)
	}
}
