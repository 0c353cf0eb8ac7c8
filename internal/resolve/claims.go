package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

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
		cmp.Compare(a.index, b.index),
	)
}

// claims knows who has what. Rivalry is rare, so only the winner is kept for
// every claim, and all rivals only where there is more than one. They may be very
// many: who comes or goes among them costs nothing but to the winner's heir.
type claims struct {
	owners    map[claim]claimant
	contested map[claim]sets.Set[claimant] // the owner is one of them
	changed   map[claim]*rivalry           // since the last settle
	problems  *problems                    // who has lost a claim has a problem
}

// rivalry is how the rivals for a claim changed.
type rivalry struct {
	owner      claimant // before
	came, went []claimant
}

// add enters a claimant. It returns the Service that loses the claim to it, if any.
func (c *claims) add(cl claim, by claimant) *service {
	owner, taken := c.owners[cl]
	if r := c.touch(cl, taken); r != nil {
		r.came = append(r.came, by)
	}
	if !taken {
		c.owners[cl] = by
		return nil
	}
	if c.contested[cl] == nil {
		c.contested[cl] = sets.New(owner)
	}
	c.contested[cl].Insert(by)
	if compareClaimants(by, owner) > 0 {
		return nil
	}
	c.owners[cl] = by
	return owner.service
}

// remove takes a claimant out. It returns the Service that gets the claim, if any.
func (c *claims) remove(cl claim, by claimant) *service {
	rivals := c.contested[cl]
	if r := c.touch(cl, rivals != nil); r != nil {
		r.went = append(r.went, by)
	}
	if rivals == nil {
		delete(c.owners, cl)
		return nil
	}
	rivals.Delete(by)
	if len(rivals) == 1 {
		delete(c.contested, cl)
	}
	if c.owners[cl] != by {
		return nil
	}
	heir := slices.MinFunc(rivals.UnsortedList(), compareClaimants)
	c.owners[cl] = heir
	return heir.service
}

// rivals returns who claims something, the owner included, in no order; some are left out.
func (c *claims) rivals(cl claim, without ...claimant) []claimant {
	all := c.contested[cl]
	if owner, taken := c.owners[cl]; taken && all == nil {
		all = sets.New(owner)
	}
	return all.Difference(sets.New(without...)).UnsortedList()
}

// touch returns what is noted of how a claim changes. That begins when it is
// contested; before, there is nothing to note.
func (c *claims) touch(cl claim, contested bool) *rivalry {
	r := c.changed[cl]
	if r == nil && contested {
		r = &rivalry{owner: c.owners[cl]}
		c.changed[cl] = r
	}
	return r
}

// settle finds the problems of who has lost a claim by what changed, and mends
// those of who has not any more. A Service that is replaced leaves its claims and
// enters them again, which is no change to its rivals.
func (c *claims) settle() {
	if len(c.changed) == 0 {
		return
	}
	for cl, r := range c.changed {
		went, came := r.went, r.came
		owner, held := c.owners[cl]
		if !held || compareClaimants(owner, r.owner) != 0 { // All are told of another owner.
			went, came = slices.Concat(r.went, c.rivals(cl, r.came...)), c.rivals(cl)
		}
		c.count(-1, cl, r.owner, went)
		c.count(1, cl, owner, came)
	}
	c.changed = map[claim]*rivalry{}
}

// count counts the problems of those that have lost a claim to its owner.
func (c *claims) count(n int, cl claim, owner claimant, rivals []claimant) {
	for _, by := range rivals {
		if by != owner {
			c.problems.count(lost(cl, owner, by), n)
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
