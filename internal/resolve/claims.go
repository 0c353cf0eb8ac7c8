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

// claim is an address, port and protocol, which only one row can have. A NodePort has
// the unspecified address, so NodePorts conflict with NodePorts only.
type claim struct {
	addr     netip.AddrPort
	protocol proxy.Protocol
}

// claimant is a Service port that claims a frontend.
type claimant struct {
	service *service
	port    *apiobject.ServicePort
	kind    proxy.Kind
	index   int // in the field that addressFields names
}

// compareClaimants orders the claimants of one claim: the first one gets it. The order
// depends on the objects alone, not on when they arrived.
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

// claims has the owner of each claim. Conflicts are rare, so all claimants are kept
// only where there is more than one. There may be very many of them: adding or removing
// one that is not the owner takes constant time.
type claims struct {
	owners    map[claim]claimant
	contested map[claim]sets.Set[claimant] // all claimants, including the owner
	changed   map[claim]*claimChange       // since the last updateProblems
	problems  *problems                    // every claimant but the owner has a problem
}

// claimChange is how the claimants of a contested claim changed.
type claimChange struct {
	oldOwner       claimant
	added, removed []claimant
}

// add adds a claimant. It returns the Service that loses the claim to it, if any.
func (c *claims) add(cl claim, by claimant) *service {
	owner, taken := c.owners[cl]
	if r := c.change(cl, taken); r != nil {
		r.added = append(r.added, by)
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

// remove removes a claimant. It returns the Service that gets the claim instead, if any.
func (c *claims) remove(cl claim, by claimant) *service {
	all := c.contested[cl]
	if r := c.change(cl, all != nil); r != nil {
		r.removed = append(r.removed, by)
	}
	if all == nil {
		delete(c.owners, cl)
		return nil
	}
	all.Delete(by)
	if len(all) == 1 {
		delete(c.contested, cl)
	}
	if c.owners[cl] != by {
		return nil
	}
	owner := slices.MinFunc(all.UnsortedList(), compareClaimants)
	c.owners[cl] = owner
	return owner.service
}

// claimants returns all claimants of a claim except some, in no particular order.
func (c *claims) claimants(cl claim, except ...claimant) []claimant {
	all := c.contested[cl]
	if owner, taken := c.owners[cl]; taken && all == nil {
		all = sets.New(owner)
	}
	return all.Difference(sets.New(except...)).UnsortedList()
}

// change returns the record of a claim's changes. It is nil as long as the claim is not
// contested, when nobody has a problem with it.
func (c *claims) change(cl claim, contested bool) *claimChange {
	r := c.changed[cl]
	if r == nil && contested {
		r = &claimChange{oldOwner: c.owners[cl]}
		c.changed[cl] = r
	}
	return r
}

// updateProblems adds and removes the problems of claimants that do not get a claim,
// for the claims that changed. A Service that changes removes its claims and adds them
// again; if it still wins, the problems of its rivals do not change.
func (c *claims) updateProblems() {
	if len(c.changed) == 0 {
		return
	}
	for cl, r := range c.changed {
		removed, added := r.removed, r.added
		owner, owned := c.owners[cl]
		if !owned || compareClaimants(owner, r.oldOwner) != 0 { // The problem of every claimant names the owner.
			removed, added = slices.Concat(r.removed, c.claimants(cl, r.added...)), c.claimants(cl)
		}
		c.countProblems(-1, cl, r.oldOwner, removed)
		c.countProblems(1, cl, owner, added)
	}
	c.changed = map[claim]*claimChange{}
}

// countProblems adds n to the count of the problem of each claimant but the owner.
func (c *claims) countProblems(n int, cl claim, owner claimant, all []claimant) {
	for _, by := range all {
		if by != owner {
			c.problems.count(lostClaim(cl, owner, by), n)
		}
	}
}

// addressFields are the fields of a Service that have its addresses.
var addressFields = [...]string{
	proxy.ClusterIP:    "spec.clusterIPs[%d]",
	proxy.LoadBalancer: "status.loadBalancer.ingress[%d].ip",
	proxy.ExternalIP:   "spec.externalIPs[%d]",
	proxy.NodePort:     "spec.ports[%d].nodePort",
}

// lostClaim is the problem of a claimant that does not get a claim.
func lostClaim(cl claim, owner, loser claimant) Problem {
	field := "spec.clusterIP"
	if loser.index >= 0 {
		field = fmt.Sprintf(addressFields[loser.kind], loser.index)
	}
	return serviceObject(loser.service.name).problem(field,
		"%d/%v is already claimed by %v", cl.addr.Port(), cl.protocol, serviceObject(owner.service.name))
}
