package conformance

import "sluice/internal/proxy"

// The two decision tables, written out as they are specified. Nothing here is
// derived from the code that is tested.

// answerFor says what happens to one origin's packet.
type answerFor struct {
	verdict proxy.Verdict
	local   bool // to the Local set, else to the Cluster set
	masq    bool
}

// The answers that occur.
var (
	toC     = answerFor{verdict: proxy.Forward}
	toCMasq = answerFor{verdict: proxy.Forward, masq: true}
	toL     = answerFor{verdict: proxy.Forward, local: true}
	toLMasq = answerFor{verdict: proxy.Forward, local: true, masq: true}
	drop    = answerFor{verdict: proxy.Drop}
	reject  = answerFor{verdict: proxy.Reject}
)

// decision is a row of a table: a traffic policy, what endpoints there are, and
// the answers to our pods, the node itself and everybody else.
type decision struct {
	policy string // empty: either
	when   supply
	p      answerFor
	n      answerFor
	x      answerFor
}

// supply is what endpoints there are.
type supply uint8

const (
	somewhere supply = iota // a usable endpoint, here or not
	here                    // a usable endpoint on this node
	elsewhere               // usable endpoints, none on this node
	nowhere                 // none
)

// clusterIPTable is for ClusterIPs, by the internal traffic policy.
var clusterIPTable = []decision{
	{policy: "Cluster", when: somewhere, p: toC, n: toCMasq, x: toCMasq},
	{policy: "Local", when: here, p: toL, n: toLMasq, x: toLMasq},
	{policy: "Local", when: elsewhere, p: drop, n: drop, x: drop},
	{when: nowhere, p: reject, n: reject, x: reject},
}

// externalTable is for external IPs, load balancer addresses and NodePorts, by
// the external traffic policy.
var externalTable = []decision{
	{policy: "Cluster", when: somewhere, p: toCMasq, n: toCMasq, x: toCMasq},
	{policy: "Local", when: here, p: toC, n: toCMasq, x: toL},
	{policy: "Local", when: elsewhere, p: toC, n: toCMasq, x: drop},
	{when: nowhere, p: reject, n: reject, x: reject},
}

// layout is one arrangement of two endpoints, one on this node and one not.
type layout struct {
	name          string
	local, remote condition
	when          supply   // here, elsewhere or nowhere
	cluster       []string // the endpoints in the Cluster set: local, remote
	onNode        []string // those in the Local set
}

// condition is the state of an endpoint.
type condition uint8

const (
	absent  condition = iota
	ready             // in use
	leaving           // terminating, but still serving
	dead              // terminating and not serving
	unready           // neither ready nor terminating
)

// layouts are all arrangements that matter: each set falls back to endpoints
// that are leaving by itself.
var layouts = []layout{
	{"both", ready, ready, here, []string{"local", "remote"}, []string{"local"}},
	{"only-local", ready, absent, here, []string{"local"}, []string{"local"}},
	{"only-remote", absent, ready, elsewhere, []string{"remote"}, nil},
	{"local-leaving", leaving, ready, here, []string{"remote"}, []string{"local"}},
	{"remote-leaving", ready, leaving, here, []string{"local"}, []string{"local"}},
	{"all-leaving", leaving, leaving, here, []string{"local", "remote"}, []string{"local"}},
	{"only-remote-leaving", absent, leaving, elsewhere, []string{"remote"}, nil},
	{"local-unready", unready, ready, elsewhere, []string{"remote"}, nil},
	{"unusable", unready, dead, nowhere, nil, nil},
	{"none", absent, absent, nowhere, nil, nil},
}

// detection is one way of telling our pods from the rest.
type detection struct {
	name   string
	config Config
	off    bool // nobody is recognised
	remote bool // pods on other nodes are recognised too
}

// detections are all ways there are.
var detections = []detection{
	{name: "cluster-cidr", config: Config{DetectLocal: "cluster-cidr"}, remote: true},
	{name: "node-cidr", config: Config{DetectLocal: "node-cidr"}},
	{name: "bridge", config: Config{DetectLocal: "bridge"}},
	{name: "prefix", config: Config{DetectLocal: "prefix"}},
	{name: "none", config: Config{DetectLocal: "none"}, off: true},
	{name: "cluster-cidr-masquerade-all", config: Config{MasqueradeAll: true}, remote: true},
	{name: "none-masquerade-all", config: Config{DetectLocal: "none", MasqueradeAll: true}, off: true},
}

// decide looks an answer up for a place that a packet comes from.
func (d detection) decide(rows []decision, policy string, when supply, from Place) answerFor {
	row := find(rows, policy, when)
	switch {
	case from.onNode():
		return row.n
	case d.off, from.outside(), from == FromRemotePod && !d.remote:
		return row.x
	default:
		return row.p
	}
}

func find(rows []decision, policy string, when supply) decision {
	for _, r := range rows {
		fits := r.when == when || r.when == somewhere && when != nowhere
		if fits && (r.policy == "" || r.policy == policy) {
			return r
		}
	}
	panic("the table has no row for policy " + policy)
}

// clusterIP is the answer for a ClusterIP. Masquerading everything concerns
// these alone, and who cannot recognise pods masquerades nobody.
func (d detection) clusterIP(policy string, when supply, from Place) answerFor {
	a := d.decide(clusterIPTable, policy, when, from)
	if a.verdict == proxy.Forward {
		a.masq = d.config.MasqueradeAll || a.masq && !d.off
	}
	return a
}

// external is the answer for every other frontend.
func (d detection) external(policy string, when supply, from Place) answerFor {
	return d.decide(externalTable, policy, when, from)
}
