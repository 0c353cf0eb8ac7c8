package conformance

import (
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

//go:embed cases/*.yaml
var files embed.FS

// table holds the cases of one file, or of all files.
type table struct {
	Theme    string   `json:"-"`
	Groups   []*Group `json:"groups"`
	Stateful []*Story `json:"stateful"`
}

// Group is a set of objects and the packets that are sent while they are in force.
type Group struct {
	ID    string   `json:"id"`
	Modes []string `json:"modes"` // the modes it applies to; empty means all
	World
	Phases []Phase `json:"phases"`
	Cases  []*Case `json:"cases"`
}

// World is the input of the resolver: configuration, node and objects.
type World struct {
	Config     Config                       `json:"config"`
	NodeLabels map[string]string            `json:"node_labels"` // of this node
	Services   []*v1.Service                `json:"services"`
	Slices     []*discoveryv1.EndpointSlice `json:"slices"`
	Places     map[netip.Addr]string        `json:"places"` // the node of a pod whose endpoint has no nodeName
}

// Config is the configuration of the proxy; the zero value is the table's default.
type Config struct {
	DetectLocal       string     `json:"detect_local"` // cluster-cidr (default), node-cidr, bridge, prefix, none
	MasqueradeAll     bool       `json:"masquerade_all"`
	LocalhostNodePort *bool      `json:"localhost_nodeports"` // nil means true in mode iptables only
	RefuseLoopback    bool       `json:"refuse_loopback"`     // as mode nftables does with its gate for loopback addresses
	NodePortAddresses stringList `json:"nodeport_addresses"`  // primary, all or CIDRs; empty means the mode's default
	ServiceCIDRs      []string   `json:"service_cidrs"`       // nil means serviceCIDRs
	ExternalIPs       []string   `json:"allowed_external_ips"`
	LoadBalancerIPs   []string   `json:"allowed_load_balancer_ips"`
}

// Phase changes a group's objects. The phase "initial" changes nothing.
type Phase struct {
	Name           string                       `json:"name"`
	DeleteSlices   stringList                   `json:"delete_slices"`   // all, or names
	DeleteServices stringList                   `json:"delete_services"` // all, or NAMESPACE/NAME
	Services       []*v1.Service                `json:"services"`        // new or changed
	Slices         []*discoveryv1.EndpointSlice `json:"slices"`          // new or changed
	NodeLabels     map[string]string            `json:"node_labels"`     // if they change
	ServiceCIDRs   []string                     `json:"-"`               // if they change

	// Events before the phase, if a whole daemon is tested.
	Detour bool   `json:"-"` // wrong objects are written first
	Kill   bool   `json:"-"` // the daemon is killed and started again
	Fault  *Fault `json:"-"` // of the source of objects; nil means none
}

// stringList is a list that may be written in YAML as a single string.
type stringList []string

func (w *stringList) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		*w = stringList{word}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(w))
}

func (w stringList) has(name string) bool {
	return slices.Contains(w, name) || slices.Contains(w, "all")
}

// Case is one packet.
type Case struct {
	ID       string            `json:"id"`
	Phase    string            `json:"phase"`
	From     Place             `json:"from"`
	Src      netip.Addr        `json:"src"` // default: the table's client at that place
	Dst      netip.Addr        `json:"dst"`
	DPort    uint16            `json:"dport"`
	Proto    v1.Protocol       `json:"proto"` // default: TCP
	Expect   Expect            `json:"expect"`
	ExpectIn map[string]Expect `json:"expect_in"` // by mode, where modes may differ
	Reason   string            `json:"reason"`    // the reason that explain must give; empty means any that fits the verdict
	Service  string            `json:"service"`   // the Service that explain is asked about, NAMESPACE/NAME[:PORT]; default: Dst and DPort
	Modes    []string          `json:"modes"`
}

func (c *Case) expected(mode string) Expect {
	if e, ok := c.ExpectIn[mode]; ok {
		return e
	}
	return c.Expect
}

func (c *Case) to() netip.AddrPort { return netip.AddrPortFrom(c.Dst, c.DPort) }

func (c *Case) protocol() proxy.Protocol { return protocols[c.Proto] }

var protocols = map[v1.Protocol]proxy.Protocol{
	"": proxy.TCP, v1.ProtocolTCP: proxy.TCP, v1.ProtocolUDP: proxy.UDP, v1.ProtocolSCTP: proxy.SCTP,
}

// Place is where a packet comes from.
type Place string

const (
	FromPod       Place = "pod"              // a pod on this node
	FromSelf      Place = "pod-self"         // an endpoint on this node
	FromInside    Place = "pod-loopback"     // the pod on this node, from a loopback address to itself
	FromRemotePod Place = "remote-pod"       // a pod on another node
	FromNode      Place = "node"             // the node's own stack
	FromLocalhost Place = "localhost"        // the node, from a loopback address
	FromVIP       Place = "lb-vip"           // the node, from an address that is bound to it for this case
	FromOutside   Place = "external"         // the outside world
	FromBlocked   Place = "external-blocked" // the same, from an address that no source range has
)

// clients are the addresses that speak when a case does not say, by family, and the node's link by
// which their packets come in, if any.
var clients = map[Place]struct {
	addrs [2]string
	link  string
}{
	FromPod:       {[2]string{"10.0.0.2", "fd00:10::2"}, lab.Bridge},
	FromSelf:      {[2]string{}, lab.Bridge},
	FromInside:    {[2]string{"127.0.0.1", "::1"}, lab.Bridge},
	FromRemotePod: {[2]string{"10.9.9.9", "fd00:10::9:0:0:9"}, lab.Transit},
	FromNode:      {[2]string{"192.168.0.2", "2001:db8::1"}, ""},
	FromLocalhost: {[2]string{"127.0.0.1", "::1"}, ""},
	FromVIP:       {[2]string{}, ""},
	FromOutside:   {[2]string{"203.0.113.2", "2600:5200::1"}, lab.Uplink},
	FromBlocked:   {[2]string{"203.0.113.130", "2600:5200:1::1"}, lab.Uplink},
}

// clientAddr returns the address of the host that the case's client runs on.
func (c *Case) clientAddr() netip.Addr {
	if c.From == FromInside {
		return netip.MustParseAddr(clients[FromPod].addrs[proxy.FamilyOf(c.Dst)])
	}
	return c.Src
}

func load() (*table, error) {
	parts, err := loadParts()
	all := &table{}
	for _, t := range parts {
		all.Groups, all.Stateful = append(all.Groups, t.Groups...), append(all.Stateful, t.Stateful...)
	}
	return all, errors.Join(err, all.complete())
}

// decisionTheme is the theme of the decision tables.
const decisionTheme = "decision tables, crossed"

// loadParts reads the files of the table and adds the generated decision tables.
func loadParts() ([]*table, error) {
	entries, err := files.ReadDir("cases")
	tables := &table{Theme: decisionTheme, Groups: decisionTables()}
	parts, errs := []*table{}, []error{err, tables.complete()}
	for _, e := range entries {
		text, err := files.ReadFile("cases/" + e.Name())
		if err != nil {
			return nil, err
		}
		t, err := parse(text)
		t.Theme = strings.TrimSuffix(e.Name(), ".yaml")
		parts, errs = append(parts, t), append(errs, wrap(e.Name(), err))
	}
	return append(parts, tables), errors.Join(errs...)
}

// parse reads one file. Unknown fields are errors, because a misspelt case would prove nothing.
func parse(text []byte) (*table, error) {
	t := &table{}
	text, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return t, err
	}
	if text, err = expand(text); err != nil {
		return t, err
	}
	if err := decodeStrict(text, t); err != nil {
		return t, err
	}
	return t, t.complete()
}

func decodeStrict(text []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(text, into)
	return errors.Join(append(strict, err)...)
}

// complete fills in defaults and validates the table.
func (t *table) complete() error {
	var ids []string
	var errs []error
	for _, g := range t.Groups {
		ids, errs = append(ids, g.ID), append(errs, wrap("group "+g.ID, g.complete()))
	}
	for _, s := range t.Stateful {
		ids, errs = append(ids, s.ID), append(errs, wrap("story "+s.ID, s.complete()))
	}
	return errors.Join(append(errs, checkUnique(ids))...)
}

// wrap prefixes an error; nil stays nil.
func wrap(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}

// checkUnique returns an error for the first id that is empty or used twice.
func checkUnique(ids []string) error {
	seen := map[string]bool{"": true}
	for _, id := range ids {
		if seen[id] {
			return fmt.Errorf("id %q is empty or used twice", id)
		}
		seen[id] = true
	}
	return nil
}

// initial is the name of the first phase of every group.
const initial = "initial"

func (g *Group) complete() error {
	if len(g.Phases) == 0 || g.Phases[0].Name != initial {
		g.Phases = append([]Phase{{Name: initial}}, g.Phases...)
	}
	if len(g.Cases) == 0 {
		return errors.New("no cases")
	}
	var ids []string
	errs := []error{g.World.complete(g.Phases...)}
	for _, c := range g.Cases {
		ids = append(ids, c.ID)
		c.Phase = cmp.Or(c.Phase, initial)
		if c.Modes == nil {
			c.Modes = g.Modes
		}
		if !slices.ContainsFunc(g.Phases, func(p Phase) bool { return p.Name == c.Phase }) {
			errs = append(errs, fmt.Errorf("case %s: phase %q is not one of the group's", c.ID, c.Phase))
		}
		errs = append(errs, wrap("case "+c.ID, c.fillSource()))
	}
	return errors.Join(append(errs, checkUnique(ids))...)
}

// fillSource validates the case and sets the source if it is missing.
func (c *Case) fillSource() (err error) {
	if !c.Dst.IsValid() || c.DPort == 0 {
		return errors.New("dst or dport is missing")
	}
	if protocols[c.Proto] == 0 {
		return fmt.Errorf("protocol %q is unknown", c.Proto)
	}
	client, known := clients[c.From]
	if !known {
		return fmt.Errorf("from %q is unknown", c.From)
	}
	if !c.Src.IsValid() {
		if c.Src, err = netip.ParseAddr(client.addrs[proxy.FamilyOf(c.Dst)]); err != nil {
			return fmt.Errorf("from %q needs a src: %w", c.From, err)
		}
	}
	return nil
}

// casesFor returns the cases that apply to a mode, of one phase or of all phases.
func (g *Group) casesFor(mode string, phase ...string) []*Case {
	return slices.DeleteFunc(slices.Clone(g.Cases), func(c *Case) bool {
		return c.Modes != nil && !slices.Contains(c.Modes, mode) || phase != nil && c.Phase != phase[0]
	})
}

// Part is a group or a story. Each is one subtest.
type Part struct {
	Theme, ID string // a theme is a file of cases, or the decision tables
	Cases     int    // 0 for a story
	SCTP      int    // how many of the cases send SCTP
	Story     bool
}

// Parts returns all parts that run in a mode.
func Parts(mode string) (out []Part, err error) {
	tables, err := loadParts()
	for _, t := range tables {
		for _, g := range t.Groups {
			p := Part{Theme: t.Theme, ID: g.ID}
			for _, c := range g.casesFor(mode) {
				if p.Cases++; c.Proto == v1.ProtocolSCTP {
					p.SCTP++
				}
			}
			out = append(out, p)
		}
		for _, s := range t.Stateful {
			out = append(out, Part{Theme: t.Theme, ID: s.ID, Story: true})
		}
	}
	return out, err
}

// Story is a sequence of steps, for behaviour that depends on earlier packets.
type Story struct {
	ID string `json:"id"`
	World
	Steps []*Step `json:"steps"`
}

// Step is one action of a story.
type Step struct {
	Do string `json:"do"` // connect, wait, remove_endpoint, change, resync, reopen

	// connect: each client opens one connection after another.
	From     Place        `json:"from"`
	Src      []netip.Addr `json:"src"`     // default: the table's client at that place
	Clients  int          `json:"clients"` // instead of Src: so many clients outside
	Dst      netip.Addr   `json:"dst"`
	DPort    uint16       `json:"dport"`
	Proto    v1.Protocol  `json:"proto"`
	Times    int          `json:"times"`
	Every    float64      `json:"every"`    // seconds between two connections
	Assert   []string     `json:"assert"`   // one_backend, all_backends, even; or same_as NAME, never_as NAME, moved_from NAME
	Remember string       `json:"remember"` // the NAME under which later steps find the backends

	Seconds float64 `json:"seconds"` // wait
	Which   string  `json:"which"`   // remove_endpoint: the NAME of remembered backends
	Change  Phase   `json:"change"`  // change
}

// assertions maps each assertion to whether a remembered name follows it.
var assertions = map[string]bool{
	"one_backend": false, "all_backends": false, "even": false, "same_as": true, "never_as": true, "moved_from": true,
}

func (s *Story) complete() error {
	var changes []Phase
	for i, st := range s.Steps {
		if err := st.complete(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		changes = append(changes, st.Change)
	}
	return s.World.complete(changes...)
}

func (st *Step) complete() error {
	switch st.Do {
	case "wait", "remove_endpoint", "change", "resync", "reopen":
		return nil
	case "connect":
	default:
		return fmt.Errorf("do is %q", st.Do)
	}
	first := [...]string{proxy.IPv4: "203.0.113.10", proxy.IPv6: "2600:5200::10"}[proxy.FamilyOf(st.Dst)]
	for a := netip.MustParseAddr(first); len(st.Src) < st.Clients; a = a.Next() {
		st.From, st.Src = FromOutside, append(st.Src, a)
	}
	for _, a := range st.Assert {
		word, name, _ := strings.Cut(a, " ")
		if named, known := assertions[word]; !known || named != (name != "") {
			return fmt.Errorf("assert is %q", a)
		}
	}
	if st.Src == nil {
		st.Src = make([]netip.Addr, 1)
	}
	for i, c := range st.cases() {
		if err := c.fillSource(); err != nil {
			return err
		}
		st.Src[i] = c.Src
	}
	return nil
}

// cases returns the connections of the step as cases, one per client.
func (st *Step) cases() []*Case {
	var out []*Case
	for _, src := range st.Src {
		out = append(out, &Case{From: st.From, Src: src, Dst: st.Dst, DPort: st.DPort, Proto: st.Proto})
	}
	return out
}
