package nftables

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// affinityName returns the name of the chain of a row's list.
func affinityName(k proxy.PortKey, scope proxy.Scope) string {
	return fmt.Sprintf("%s%016x", affinityPrefix, hash(k, scope))
}

// affinityPrefix begins the names of the chains that remember.
const affinityPrefix = "aff-"

// affinityChain chooses among a row's endpoints and remembers: first the
// endpoint this client has, then a new one. A set remembers the pair of client
// and endpoint, so that forgetting an endpoint is to have no rule for it, and
// the entries of the others live on, also over a restart. The last rules choose
// without remembering; they are reached when the set is full.
//
// A map from client to endpoint would need one rule instead of many, but its
// entries for an endpoint that left could be found by listing only.
func (t *table) affinityChain(sp *proxy.ServicePort, scope proxy.Scope) *chain {
	list := sp.List(scope)
	rules := make([]*nft.Rule, 0, 3*len(list))
	for _, e := range list {
		id := hash32(sp.Key, scope, e)
		rules = append(rules, t.rule().client(id).in(t.affinity).
			client(id).remember(t.affinity, sp.Affinity).dnatTo(e.Addr).as("the client's endpoint"))
	}
	for i, e := range list {
		rules = append(rules, t.rule().chance(uint32(len(list)-i)).
			client(hash32(sp.Key, scope, e)).remember(t.affinity, sp.Affinity).dnatTo(e.Addr).as("choose and remember"))
	}
	for i, e := range list {
		rules = append(rules, t.rule().chance(uint32(len(list)-i)).
			dnatTo(e.Addr).as("choose, there is no room to remember"))
	}
	c := t.chain(affinityName(sp.Key, scope), rules...)
	c.Comment = truncate(fmt.Sprintf("%v, %v endpoints", sp.Key.ServicePortName, scope), 120)
	return c
}

// is reports whether the kernel's rules, by their comments, are the chain's. Of
// a chain with affinity the order is the kernel's to keep: it is that in which
// endpoints came, which a new daemon does not know, and by which a client that
// is remembered for two endpoints finds the one it had last.
func (c *chain) is(comments []string) bool {
	if !strings.HasPrefix(c.Name, affinityPrefix) {
		return slices.EqualFunc(c.rules, comments, func(r *nft.Rule, comment string) bool { return r.Comment == comment })
	}
	if len(c.rules) != len(comments) {
		return false
	}
	for _, r := range c.rules[:len(c.rules)/3] {
		if !slices.Contains(comments[:len(comments)/3], r.Comment) {
			return false
		}
	}
	return true
}

// client loads the client's address and a number that stands for the endpoint.
// A random number below one, plus the number, is the number: written as a
// constant, the nft program could not list it within a key.
func (r *rule) client(id uint32) *rule { return r.load(true).slot(1, id) }

// hash32 stands for an endpoint in a list of a row, the same after a restart.
// Should two be equal, a client may be taken for known that is not, and goes to
// an endpoint of its Service all the same.
func hash32(k proxy.PortKey, scope proxy.Scope, e proxy.Endpoint) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%016x %v", hash(k, scope), e.Addr)
	return h.Sum32()
}

func truncate(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
