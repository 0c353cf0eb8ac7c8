package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// claim is what no two rows can both have: an address, a port and a protocol.
// A NodePort's address is the unspecified one, so NodePorts only compete with
// NodePorts.
type claim struct {
	addr     netip.AddrPort
	protocol proxy.Protocol
}

// claimant is one Service port that wants a claim.
type claimant struct {
	service *service
	port    *apiobject.ServicePort
	kind    proxy.Kind
	index   int // in the list of addressFields
}

// compareClaimants orders rivals: the first one wins. The order follows from
// the objects alone, never from when we heard of them.
func compareClaimants(a, b claimant) int {
	return cmp.Or(
		cmp.Compare(a.kind, b.kind),
		cmp.Compare(a.service.created, b.service.created),
		cmp.Compare(a.service.name.Namespace, b.service.name.Namespace),
		cmp.Compare(a.service.name.Name, b.service.name.Name),
		cmp.Compare(a.port.Name.Value(), b.port.Name.Value()),
	)
}

// claims knows who has what. Rivalry is rare, so only the winner is kept for
// every claim, and all rivals only where there is more than one.
type claims struct {
	owners    map[claim]claimant
	contested map[claim][]claimant // in order; the first is the owner
	before    map[claim][]claimant // the same, as settle last saw it, where it was touched
	problems  *problems            // who has lost a claim has a problem
}

// add enters a claimant. It returns the Service that loses the claim to it, if any.
func (c *claims) add(cl claim, by claimant) *service {
	owner, taken := c.owners[cl]
	if !taken {
		c.owners[cl] = by
		return nil
	}
	c.touch(cl)
	rivals := c.contested[cl]
	if rivals == nil {
		rivals = []claimant{owner}
	}
	at, _ := slices.BinarySearchFunc(rivals, by, compareClaimants)
	rivals = slices.Insert(rivals, at, by)
	c.contested[cl] = rivals
	c.owners[cl] = rivals[0]
	if at > 0 {
		return nil
	}
	return owner.service
}

// remove takes a claimant out. It returns the Service that gets the claim, if any.
func (c *claims) remove(cl claim, by claimant) *service {
	rivals := c.contested[cl]
	if rivals == nil {
		delete(c.owners, cl)
		return nil
	}
	c.touch(cl)
	at := slices.Index(rivals, by)
	rivals = slices.Delete(rivals, at, at+1)
	if len(rivals) == 1 {
		delete(c.contested, cl)
	} else {
		c.contested[cl] = rivals
	}
	c.owners[cl] = rivals[0]
	if at > 0 {
		return nil
	}
	return rivals[0].service
}

// owns reports whether a claimant has what it claims.
func (c *claims) owns(cl claim, by claimant) bool { return c.owners[cl] == by }

// touch notes how a claim stood before it changes.
func (c *claims) touch(cl claim) {
	if _, touched := c.before[cl]; !touched {
		c.before[cl] = slices.Clone(c.contested[cl])
	}
}

// settle finds the problems of who has lost a claim by what changed, and mends
// those of who has not any more. A Service that is replaced leaves its claims and
// enters them again, which is no change to its rivals.
func (c *claims) settle() {
	if len(c.before) == 0 {
		return
	}
	for cl, was := range c.before {
		is := c.contested[cl]
		c.count(-1, cl, was, is)
		c.count(1, cl, is, was)
	}
	c.before = map[claim][]claimant{}
}

// count counts the problems of rivals that do not have them among others, too.
// The first one of either list is the owner.
func (c *claims) count(n int, cl claim, rivals, others []claimant) {
	sameOwner := len(rivals) > 0 && len(others) > 0 && rivals[0].service.name == others[0].service.name
	for i := 1; i < len(rivals); i++ {
		at, found := slices.BinarySearchFunc(others, rivals[i], compareClaimants)
		if !sameOwner || !found || at == 0 || others[at].index != rivals[i].index {
			c.problems.count(lost(cl, rivals[0], rivals[i]), n)
		}
	}
}

// addressFields are where a Service names its addresses.
var addressFields = [...]string{
	proxy.ClusterIP:    "spec.clusterIPs[%d]",
	proxy.LoadBalancer: "status.loadBalancer.ingress[%d].ip",
	proxy.ExternalIP:   "spec.externalIPs[%d]",
	proxy.NodePort:     "spec.ports[%d].nodePort",
}

// lost is the problem of who wants a claim that another has.
func lost(cl claim, owner, loser claimant) Problem {
	field := "spec.clusterIP"
	if loser.index >= 0 {
		field = fmt.Sprintf(addressFields[loser.kind], loser.index)
	}
	return serviceObject(loser.service.name).problem(field,
		"%d/%v claimed by %v already", cl.addr.Port(), cl.protocol, serviceObject(owner.service.name))
}
