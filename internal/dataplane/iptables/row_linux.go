package iptables

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
)

// row renders the difference between two forms of a row, if its family is served.
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

// healthCheck renders the rule for a health check's port, which the node's own
// firewall might close.
func (d *Dataplane) healthCheck(h *proxy.HealthCheck, add func(id, value)) {
	for _, f := range d.families {
		if h.Key.Family == f.Family {
			rule := fmt.Sprintf("-p tcp %s-m tcp --dport %d -j ACCEPT",
				comment(h.Key.Namespace+"/"+h.Key.Name+" health check node port"), h.Port)
			add(id{f, nodePortFilter, rule}, value{rules: []string{rule}})
		}
	}
}

// renderer renders one row: chains of its own in table nat, and rules in the
// chains that rows share.
type renderer struct {
	f    *family
	v    *nodeMatches
	out  func(id, value)
	made map[string]bool // the row's own chains

	sp        *proxy.ServicePort
	name      string // of the service port
	id        string // the hash in its chains' names
	proto, l4 string // matches of its protocol
}

func (f *family) render(v *nodeMatches, sp *proxy.ServicePort, out func(id, value)) {
	proto := strings.ToLower(sp.Key.Protocol.String())
	r := &renderer{
		f: f, v: v, out: out, made: map[string]bool{}, sp: sp, name: portName(sp.Key), id: hash(sp.Key, ""),
		proto: "-p " + proto + " ", l4: "-m " + proto + " ",
	}
	for _, f := range sp.Frontends {
		r.frontend(f)
	}
}

func (r *renderer) own(name string, rules ...string) string {
	if !r.made[name] {
		r.made[name] = true
		r.out(id{f: r.f, chainRef: chainRef{nat, name}}, value{rules: rules, row: &r.sp.Key})
	}
	return name
}

func (r *renderer) add(p chainRef, rule string) {
	r.out(id{r.f, p, rule}, value{rules: []string{rule}, row: &r.sp.Key})
}

// match matches what comes to a frontend: a NodePort at any address.
func (r *renderer) match(f proxy.Frontend, text string) string {
	at := ""
	if f.Kind != proxy.NodePort {
		at = to(single(f.Addr.Addr()))
	}
	return fmt.Sprintf("%s%s%s%s--dport %d ", at, r.proto, comment(r.name+text), r.l4, f.Addr.Port())
}

// kindText is what comments say of a frontend.
var kindText = map[proxy.Kind]string{
	proxy.ClusterIP: " cluster IP", proxy.LoadBalancer: " loadbalancer IP", proxy.ExternalIP: " external IP",
}

func (r *renderer) frontend(f proxy.Frontend) {
	policy := r.sp.Policy(f.Kind, r.v.node)
	elsewhere := policy[proxy.Elsewhere] // who is let in is the same for all origins
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
		// It may be an address of the node, where a NodePort has the same number.
		r.add(dispatch, r.match(f, noEndpoints)+"-j RETURN")
	}
	if f.Kind == proxy.ClusterIP {
		r.add(clusterIPs, to(single(f.Addr.Addr()))+comment(r.nameOfProtocol()+kindText[f.Kind])+r.v.reject())
	}
	if elsewhere.From != nil {
		r.add(restricted, r.match(f, " traffic not accepted by "+sourceChain+r.id)+"-j DROP")
	}
	if len(elsewhere.To) == 0 {
		r.empty(f, elsewhere)
	}
}

// nameOfProtocol tells ports apart that have one name and two protocols, where nothing else
// in a rule does.
func (r *renderer) nameOfProtocol() string {
	if r.sp.Key.Protocol == proxy.TCP {
		return r.name
	}
	return r.name + "/" + r.sp.Key.Protocol.String()
}

// empty renders a frontend that has no endpoint, at least for clients from
// elsewhere. Others have been sent to one by then if there is any.
func (r *renderer) empty(f proxy.Frontend, route proxy.Route) {
	then, text := r.v.reject(), noEndpoints
	switch {
	case route.Otherwise == proxy.Drop:
		then, text = "-j DROP", noLocalEndpoints
	case r.v.resetTCP && r.sp.Key.Protocol == proxy.TCP:
		then = "-j REJECT --reject-with tcp-reset"
	}
	rule := r.match(f, text) + then
	switch {
	case f.Kind == proxy.ClusterIP:
		r.add(emptyClusterIP, rule)
	case f.Kind == proxy.NodePort:
		for _, to := range r.v.nodePorts {
			r.add(nodePortFilter, fmt.Sprintf("%s%s%s%s%s%s--dport %d %s",
				to, r.proto, newFlow, comment(r.name+text), toLocal, r.l4, f.Addr.Port(), then))
		}
	case route.From == nil:
		r.add(emptyExternal, rule)
	default:
		for _, p := range route.From { // the others are dropped later
			r.add(emptyExternal, from(p)+rule)
		}
	}
}

// external returns the chain that sends each origin where its route does, which
// is the same for all frontends but ClusterIPs. Where not everybody is let in, it
// is the chain that lets allowed clients go on there. Others leave it as they
// came, and by goto do not come to the NodePorts.
func (r *renderer) external(policy proxy.Policy) string {
	var do treatments
	for origin, route := range policy {
		do[origin].mark = route.Masquerade
		if len(route.To) > 0 {
			do[origin].next = r.list(route.Scope)
		}
	}
	chain := r.own(externalChain+r.id, r.v.byOrigin(do, " for "+r.name+" external destinations")...)
	allowed := policy[proxy.Elsewhere].From
	if allowed == nil {
		return chain
	}
	var rules []string
	for _, p := range allowed {
		rules = append(rules, from(p)+comment(r.name+kindText[proxy.LoadBalancer])+"-j "+chain)
	}
	return r.own(sourceChain+r.id, rules...)
}

// list returns the chain that chooses among the endpoints of a scope. Clients
// of the ClusterIP are masqueraded here, since others come here too.
func (r *renderer) list(scope proxy.Scope) string {
	name := clusterChain + r.id
	if scope == proxy.ScopeLocal {
		name = localChain + r.id
	}
	if r.made[name] {
		return name
	}
	var rules, choose []string
	if r.v.ofClusterIP != (treatments{}) && r.sp.Policy(proxy.ClusterIP, r.v.node)[proxy.Elsewhere].Scope == scope {
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
				match, int(math.Ceil(r.sp.Affinity.Seconds())), r.remembered(r.endpoint(e)), then))
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

// needsChain reports whether more than sending there is to be done for an
// endpoint. The kernel walks every chain of a table at each change, so there are
// none that need not be.
func (r *renderer) needsChain(e proxy.Endpoint) bool { return r.sp.Affinity > 0 || e.MayHairpin() }

// endpoint returns the chain that sends to an endpoint.
func (r *renderer) endpoint(e proxy.Endpoint) string {
	name := endpointChain + hash(r.sp.Key, e.Addr.String())
	var rules []string
	if e.MayHairpin() {
		rules = append(rules, from(single(e.Addr.Addr()))+comment(r.name)+"-j "+kubeMark)
	}
	send := r.proto + comment(r.name)
	if r.sp.Affinity > 0 {
		send += "-m recent --set " + r.remembered(name)
	}
	rules = append(rules, send+r.l4+dnat(e))
	return r.own(name, rules...)
}

func dnat(e proxy.Endpoint) string {
	return "-j DNAT --to-destination " + strings.Replace(e.Addr.String(), e.Addr.Addr().String(), printed(e.Addr.Addr()), 1)
}

// remembered names the list of clients that an endpoint's chain has.
func (r *renderer) remembered(chain string) string {
	mask := [...]string{"255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}[r.v.family]
	return "--name " + chain + " --mask " + mask + " --rsource "
}

// probability returns one in n as the kernel can hold it, in 31 bits, and as
// iptables-save prints that.
func probability(n int) string {
	const whole = 1 << 31
	return fmt.Sprintf("%.11f", math.Round(whole/float64(n))/whole)
}
