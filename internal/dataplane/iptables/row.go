package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"sluice/internal/proxy"
)

// rendering is what a row becomes: chains of its own in table nat, and rules in
// the chains that rows share.
type rendering struct {
	names  []string // of the own chains, in order
	chains map[string][]string
	shared []line
}

// line is a rule in a chain that rows share.
type line struct {
	place
	rule string
}

func (r *rendering) own(name string, rules ...string) string {
	if _, ok := r.chains[name]; !ok {
		r.names = append(r.names, name)
		r.chains[name] = rules
	}
	return name
}

// ownRules counts the rules of the own chains.
func (r *rendering) ownRules() int {
	n := 0
	for _, rules := range r.chains {
		n += len(rules)
	}
	return n
}

// had returns how many rules an own chain has.
func (r *rendering) had(p place) int {
	if rules, ok := r.chains[p.chain]; ok {
		return len(rules)
	}
	return absent
}

// count counts the uses of all rules, n times.
func (r *rendering) count(u uses, n int) {
	for name, rules := range r.chains {
		u.chain(place{nat, name}, rules, n)
	}
	for _, l := range r.shared {
		u.chain(l.place, []string{l.rule}, n)
	}
}

func (r *rendering) add(p place, rule string) { r.shared = append(r.shared, line{p, rule}) }

// renderer renders one row.
type renderer struct {
	*rendering
	v    *view
	sp   *proxy.ServicePort
	name string // of the service port
	id   string // the hash in its chains' names
	proto,
	l4 string // matches of its protocol
}

// render returns what a row becomes; nothing for none.
func (v *view) render(sp *proxy.ServicePort) *rendering {
	out := &rendering{chains: map[string][]string{}}
	if sp == nil {
		return out
	}
	proto := strings.ToLower(sp.Key.Protocol.String())
	r := &renderer{
		rendering: out, v: v, sp: sp, name: portName(sp.Key), id: hash(sp.Key, ""),
		proto: "-p " + proto + " ", l4: "-m " + proto + " ",
	}
	for _, f := range sp.Frontends {
		r.frontend(f)
	}
	return out
}

// frontend renders one frontend: where its packets go, and what happens to
// those that go nowhere.
func (r *renderer) frontend(f proxy.Frontend) {
	anyNode := &proxy.Node{}
	near := r.sp.Policy(f.Kind, anyNode)[proxy.ThisNode]
	far := r.sp.Policy(f.Kind, anyNode)[proxy.Elsewhere]
	port := fmt.Sprintf("--dport %d ", f.Addr.Port())
	exact := func(text string) string { return r.to(f.Addr.Addr()) + r.proto + comment(text) + r.l4 + port }
	if len(near.To) > 0 {
		switch f.Kind {
		case proxy.ClusterIP:
			r.add(dispatch, exact(r.name+" cluster IP")+"-j "+r.list(near.Scope))
		case proxy.LoadBalancer:
			to := r.external()
			if r.sp.AllowFrom != nil {
				to = r.allowed(to)
			}
			r.add(dispatch, exact(r.name+" loadbalancer IP")+"-g "+to)
		case proxy.ExternalIP:
			r.add(dispatch, exact(r.name+" external IP")+"-g "+r.external())
		case proxy.NodePort:
			r.add(dispatchPort, r.proto+comment(r.name)+r.l4+port+"-j "+r.external())
		}
	}
	if len(near.To) == 0 && (f.Kind == proxy.LoadBalancer || f.Kind == proxy.ExternalIP) {
		// It may be an address of the node, where a NodePort has the same number.
		r.add(dispatch, exact(r.name+" has no endpoints")+"-j RETURN")
	}
	if f.Kind == proxy.ClusterIP {
		r.add(clusterIPs, r.to(f.Addr.Addr())+comment(r.name+" cluster IP")+r.v.reject())
	}
	if f.Kind == proxy.LoadBalancer && r.sp.AllowFrom != nil {
		r.add(restricted, exact(r.name+" traffic not accepted by "+sourceChain+r.id)+"-j DROP")
	}
	if len(far.To) == 0 {
		r.empty(f, far.Otherwise, exact)
	}
}

// empty renders a frontend that has no endpoint, at least for clients from
// elsewhere. Others have been sent to one by then if there is any.
func (r *renderer) empty(f proxy.Frontend, v proxy.Verdict, exact func(string) string) {
	then, text := r.v.reject(), r.name+" has no endpoints"
	if v == proxy.Drop {
		then, text = "-j DROP", r.name+" has no local endpoints"
	}
	switch {
	case f.Kind == proxy.ClusterIP:
		r.add(emptyClusterIP, exact(text)+then)
	case f.Kind == proxy.NodePort:
		for _, to := range r.v.nodePorts {
			r.add(nodePortFilter, fmt.Sprintf("%s%s%s%s%s%s--dport %d %s",
				to, r.proto, newFlow, comment(text), toLocal, r.l4, f.Addr.Port(), then))
		}
	case f.Kind == proxy.LoadBalancer && r.sp.AllowFrom != nil:
		for _, p := range r.sp.AllowFrom { // the others are dropped later
			r.add(emptyExternal, from(p)+exact(text)+then)
		}
	default:
		r.add(emptyExternal, exact(text)+then)
	}
}

func (r *renderer) to(a netip.Addr) string { return to(netip.PrefixFrom(a, a.BitLen())) }

// allowed returns the chain that lets allowed clients go on. Others leave it as
// they came, and by goto do not come to the NodePorts.
func (r *renderer) allowed(next string) string {
	var rules []string
	for _, p := range r.sp.AllowFrom {
		rules = append(rules, from(p)+comment(r.name+" loadbalancer IP")+"-j "+next)
	}
	return r.own(sourceChain+r.id, rules...)
}

// external returns the chain of the external policy.
func (r *renderer) external() string {
	cluster := r.list(proxy.ScopeCluster)
	text := " for " + r.name + " external destinations"
	if r.sp.External == proxy.ScopeCluster {
		return r.own(externalChain+r.id, comment("masquerade traffic"+text)+"-j "+kubeMark, "-j "+cluster)
	}
	var rules []string
	for _, match := range r.v.pods {
		rules = append(rules, match+comment("pod traffic"+text)+"-j "+cluster)
	}
	rules = append(rules,
		comment("masquerade LOCAL traffic"+text)+fromLocal+"-j "+kubeMark,
		comment("route LOCAL traffic"+text)+fromLocal+"-j "+cluster)
	if len(r.sp.Local) > 0 {
		rules = append(rules, "-j "+r.list(proxy.ScopeLocal))
	}
	return r.own(externalChain+r.id, rules...)
}

// list returns the chain that chooses among the endpoints of a scope. Clients
// of the ClusterIP are masqueraded here, since others come here too.
func (r *renderer) list(scope proxy.Scope) string {
	name := clusterChain + r.id
	if scope == proxy.ScopeLocal {
		name = localChain + r.id
	}
	if _, ok := r.chains[name]; ok {
		return name
	}
	var rules, choose []string
	if r.sp.Internal == scope && (r.v.detects || r.v.all) {
		for _, f := range r.sp.Frontends {
			if f.Kind == proxy.ClusterIP {
				rules = append(rules, fmt.Sprintf("%s%s%s%s--dport %d -j %s",
					r.to(f.Addr.Addr()), r.proto, comment(r.name+" cluster IP"), r.l4, f.Addr.Port(), kubeMarkOther))
			}
		}
	}
	list := r.sp.List(scope)
	for i, e := range list {
		match, then := comment(r.name+" -> "+e.Addr.String()), "-j DNAT --to-destination "+e.Addr.String()
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
		a := e.Addr.Addr()
		rules = append(rules, from(netip.PrefixFrom(a, a.BitLen()))+comment(r.name)+"-j "+kubeMark)
	}
	send := r.proto + comment(r.name)
	if r.sp.Affinity > 0 {
		send += "-m recent --set " + r.remembered(name)
	}
	rules = append(rules, send+r.l4+"-j DNAT --to-destination "+e.Addr.String())
	return r.own(name, rules...)
}

// remembered names the list of clients that an endpoint's chain has.
func (r *renderer) remembered(chain string) string {
	mask := "255.255.255.255"
	if r.v.family == proxy.IPv6 {
		mask = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	return "--name " + chain + " --mask " + mask + " --rsource "
}

// probability returns one in n as the kernel can hold it, in 31 bits, and as
// iptables-save prints that.
func probability(n int) string {
	const whole = 1 << 31
	return fmt.Sprintf("%.11f", math.Round(whole/float64(n))/whole)
}
