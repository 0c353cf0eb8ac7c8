package userspace

import (
	"net/netip"
	"time"

	"sluice/internal/kernel/link"
)

// neighbours finds out which addresses share a subnet on one of the node's links, as pods on
// a bridge do. One worker uses it.
type neighbours struct {
	kernel  *link.Subnets
	read    time.Time // when the node's subnets were last listed
	subnets []netip.Prefix
}

// subnetsFor is how long a list of the node's subnets is used.
const subnetsFor = time.Second

// share reports whether the endpoint would send its replies to the client directly, not
// through this node, because both are on one subnet. Where the kernel cannot be asked, the
// answer is no.
func (n *neighbours) share(client, endpoint netip.Addr) bool {
	if now := time.Now(); now.Sub(n.read) > subnetsFor {
		if all, err := n.kernel.List(); err == nil {
			n.subnets = all
		}
		n.read = now
	}
	for _, p := range n.subnets {
		if p.Contains(client) && p.Contains(endpoint) {
			// A more specific route may lead elsewhere: some CNI plugins give pods addresses of
			// the node's own subnet, and a link each.
			to, err := n.kernel.LinkOf(endpoint)
			from, err2 := n.kernel.LinkOf(client)
			return err == nil && err2 == nil && to != 0 && to == from
		}
	}
	return false
}
