package iptables

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
)

// row renders the difference between two versions of a row, if its family is served.
func (d *Dataplane) row(old, cur differ.Row, out *changes) error {
	for _, f := range d.families {
		if sp := old.ServicePort; sp != nil && sp.Key.Family == f.Family {
			f.render(f.matches(old.Node), sp, out.Remove)
		}
		if sp := cur.ServicePort; sp != nil && sp.Key.Family == f.Family {
			f.render(f.matches(cur.Node), sp, out.Add)
		}
	}
	return nil
}

// healthCheck renders the rule that accepts connections to a health check's port,
// which a firewall of the node might drop.
func (d *Dataplane) healthCheck(h *proxy.HealthCheck, add func(id, value)) {
	for _, f := range d.families {
		if h.Key.Family == f.Family {
			rule := fmt.Sprintf("-p tcp %s-m tcp --dport %d -j ACCEPT",
				comment(h.Key.Namespace+"/"+h.Key.Name+" health check node port"), h.Port)
			add(id{f, nodePortFilter, rule}, value{rules: []string{rule}})
		}
	}
}

// renderer renders one row: its own chains in table nat, and rules in chains that rows
// share.
type renderer struct {
	f        *family
	node     *nodeMatches
	out      func(id, value)
	rendered map[string]bool // the row's own chains so far

	sp        *proxy.ServicePort
	name      string // of the service port
	hash      string // the end of the names of its chains
	proto, l4 string // matches for its protocol
}

func (f *family) render(node *nodeMatches, sp *proxy.ServicePort, out func(id, value)) {
	proto := strings.ToLower(sp.Key.Protocol.String())
	r := &renderer{
		f: f, node: node, out: out, rendered: map[string]bool{}, sp: sp, name: portName(sp.Key), hash: hash(sp.Key, ""),
		proto: "-p " + proto + " ", l4: "-m " + proto + " ",
	}
	for _, f := range sp.Frontends {
		r.frontend(f)
	}
}

// own renders a chain of the row, once, and returns its name.
func (r *renderer) own(name string, rules ...string) string {
	if !r.rendered[name] {
		r.rendered[name] = true
		r.out(id{f: r.f, chainRef: chainRef{nat, name}}, value{rules: rules, row: &r.sp.Key})
	}
	return name
}

// add renders a rule in a chain that rows share.
func (r *renderer) add(p chainRef, rule string) {
	r.out(id{r.f, p, rule}, value{rules: []string{rule}, row: &r.sp.Key})
}

// match returns a match for packets to a frontend. That of a NodePort has no address.
func (r *renderer) match(f proxy.Frontend, text string) string {
	at := ""
	if f.Kind != proxy.NodePort {
		at = to(hostPrefix(f.Addr.Addr()))
	}
	return fmt.Sprintf("%s%s%s%s--dport %d ", at, r.proto, comment(r.name+text), r.l4, f.Addr.Port())
}

// kindText is the name of a kind of frontend in comments.
var kindText = map[proxy.Kind]string{
	proxy.ClusterIP: " cluster IP", proxy.LoadBalancer: " loadbalancer IP", proxy.ExternalIP: " external IP",
}

func (r *renderer) frontend(f proxy.Frontend) {
	policy := r.sp.Policy(f.Kind, r.node.node)
	elsewhere := policy[proxy.Elsewhere] // its From is the same for all origins
	served := slices.ContainsFunc(policy[:], func(route proxy.Route) bool { return len(route.To) > 0 })
	match := r.match(f, kindText[f.Kind])
	switch {
	case served && f.Kind == proxy.ClusterIP:
		r.add(dispatch, match+"-j "+r.list(elsewhere.Scope))
	case served && f.Kind == proxy.NodePort:
		r.add(dispatchPort, match+"-j "+r.external(policy))
	case served:
		r.add(dispatch, match+"-g "+r.external(policy))
	case f.Kind == proxy.LoadBalancer || f.Kind == proxy.ExternalIP:
		// The address may be one of the node, and a NodePort may have the same number.
		r.add(dispatch, r.match(f, noEndpoints)+"-j RETURN")
	}
	if f.Kind == proxy.ClusterIP {
		r.add(clusterIPs, to(hostPrefix(f.Addr.Addr()))+comment(r.nameWithProtocol()+kindText[f.Kind])+r.node.reject())
	}
	if elsewhere.From != nil {
		r.add(restricted, r.match(f, " traffic not accepted by "+sourceChain+r.hash)+"-j DROP")
	}
	if len(elsewhere.To) == 0 {
		r.refuse(f, elsewhere)
	}
}

// nameWithProtocol returns a name that differs between two ports that have the same name
// but not the same protocol, for rules that do not match the protocol.
func (r *renderer) nameWithProtocol() string {
	if r.sp.Key.Protocol == proxy.TCP {
		return r.name
	}
	return r.name + "/" + r.sp.Key.Protocol.String()
}

// refuse renders a frontend that has no endpoint for clients from elsewhere. Packets
// that have an endpoint have been translated before they reach these rules.
func (r *renderer) refuse(f proxy.Frontend, route proxy.Route) {
	then, text := r.node.reject(), noEndpoints
	switch {
	case route.Otherwise == proxy.Drop:
		then, text = "-j DROP", noLocalEndpoints
	case r.node.resetTCP && r.sp.Key.Protocol == proxy.TCP:
		then = "-j REJECT --reject-with tcp-reset"
	}
	rule := r.match(f, text) + then
	switch {
	case f.Kind == proxy.ClusterIP:
		r.add(emptyClusterIP, rule)
	case f.Kind == proxy.NodePort:
		for _, to := range r.node.nodePorts {
			r.add(nodePortFilter, fmt.Sprintf("%s%s%s%s%s%s--dport %d %s",
				to, r.proto, newFlow, comment(r.name+text), toLocal, r.l4, f.Addr.Port(), then))
		}
	case route.From == nil:
		r.add(emptyExternal, rule)
	default:
		for _, p := range route.From { // other clients are dropped in KUBE-PROXY-FIREWALL
			r.add(emptyExternal, from(p)+rule)
		}
	}
}

// external renders the chain that implements the route of each origin, which is the
// same for all frontends but ClusterIPs, and returns the name of the chain to enter. If
// there are source ranges, that is a chain that only allowed clients pass. Other
// clients leave it untranslated; because it is entered by a goto, they do not reach
// the rules of NodePorts.
func (r *renderer) external(policy proxy.Policy) string {
	var do treatments
	for origin, route := range policy {
		do[origin].mark = route.Masquerade
		if len(route.To) > 0 {
			do[origin].next = r.list(route.Scope)
		}
	}
	chain := r.own(externalChain+r.hash, r.node.byOrigin(do, " for "+r.name+" external destinations")...)
	allowed := policy[proxy.Elsewhere].From
	if allowed == nil {
		return chain
	}
	var rules []string
	for _, p := range allowed {
		rules = append(rules, from(p)+comment(r.name+kindText[proxy.LoadBalancer])+"-j "+chain)
	}
	return r.own(sourceChain+r.hash, rules...)
}

// list renders the chain that chooses among the endpoints of a scope, and returns its
// name. Clients of the ClusterIP are marked for masquerade here, by a rule that matches
// the ClusterIP, because clients of other frontends pass this chain, too.
func (r *renderer) list(scope proxy.Scope) string {
	name := clusterChain + r.hash
	if scope == proxy.ScopeLocal {
		name = localChain + r.hash
	}
	if r.rendered[name] {
		return name
	}
	var rules, choose []string
	if r.node.clusterIP != (treatments{}) && r.sp.Policy(proxy.ClusterIP, r.node.node)[proxy.Elsewhere].Scope == scope {
		for _, f := range r.sp.Frontends {
			if f.Kind == proxy.ClusterIP {
				rules = append(rules, r.match(f, kindText[f.Kind])+"-j "+kubeMarkOther)
			}
		}
	}
	list := r.sp.List(scope)
	for i, e := range list {
		match, then := comment(r.name+" -> "+e.Addr.String()), dnat(e)
		if r.needsChain(e) {
			then = "-j " + r.endpoint(e)
		}
		if r.sp.Affinity > 0 {
			rules = append(rules, fmt.Sprintf("%s-m recent --rcheck --seconds %d --reap %s%s",
				match, int(math.Ceil(r.sp.Affinity.Seconds())), r.recentList(r.endpoint(e)), then))
		}
		if left := len(list) - i; left > 1 {
			match += "-m statistic --mode random --probability " + probability(left) + " "
		}
		if !r.needsChain(e) {
			match = r.proto + match
		}
		choose = append(choose, match+then)
	}
	return r.own(name, append(rules, choose...)...)
}

// needsChain reports whether an endpoint needs more than DNAT, and thus its own chain.
// The kernel walks every chain of a table at each change, so there are no others.
func (r *renderer) needsChain(e proxy.Endpoint) bool { return r.sp.Affinity > 0 || e.MayHairpin() }

// endpoint renders the chain that sends packets to an endpoint, and returns its name.
func (r *renderer) endpoint(e proxy.Endpoint) string {
	name := endpointChain + hash(r.sp.Key, e.Addr.String())
	var rules []string
	if e.MayHairpin() {
		rules = append(rules, from(hostPrefix(e.Addr.Addr()))+comment(r.name)+"-j "+kubeMark)
	}
	send := r.proto + comment(r.name)
	if r.sp.Affinity > 0 {
		send += "-m recent --set " + r.recentList(name)
	}
	rules = append(rules, send+r.l4+dnat(e))
	return r.own(name, rules...)
}

func dnat(e proxy.Endpoint) string {
	return "-j DNAT --to-destination " + strings.Replace(e.Addr.String(), e.Addr.Addr().String(), formatAddr(e.Addr.Addr()), 1)
}

// recentList returns the options of match recent that name the list of an endpoint's
// clients.
func (r *renderer) recentList(chain string) string {
	mask := [...]string{"255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}[r.node.family]
	return "--name " + chain + " --mask " + mask + " --rsource "
}

// probability returns 1/n rounded to the 31 bits that the kernel stores, as
// iptables-save prints it.
func probability(n int) string {
	const one = 1 << 31
	return fmt.Sprintf("%.11f", math.Round(one/float64(n))/one)
}
