package nftables

import (
	"net/netip"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// tableName is the name of our table in each family.
const tableName = "sluice"

// affinitySize bounds how many clients are remembered, over all Services. When
// it is reached, new clients are balanced without being remembered.
const affinitySize = 1 << 18

// table is one family's table: its sets, and what differs between families.
type table struct {
	family proxy.Family
	nft.Table
	mark uint32 // the bit of the packet mark that asks for masquerading

	addresses space // frontends with an address of their own
	nodePorts space // frontends on the node's addresses

	clusterIPs *nft.Set // all ClusterIPs, to refuse their other ports
	hairpins   *nft.Set // client . endpoint pairs that are one pod
	restricted *nft.Set // frontends with source ranges
	allowed    *nft.Set // frontend . clients that may use it
	affinity   *nft.Set // clients and the endpoints they are remembered for
}

// space is one way to say which frontend a packet is for: by address, protocol
// and port, or by protocol and port alone. The two have the same maps.
type space struct {
	prefix    string
	byAddress bool
	dispatch  *nft.Set // frontend -> chain
	locals    *nft.Set // frontend -> chain of the Local list, for clients from elsewhere
	empty     *nft.Set // frontend -> what happens without an endpoint
	endpoints *nft.Set // frontend . slot -> endpoint
}

func newTable(f proxy.Family, markBit uint8, name string) *table {
	t := &table{family: f, Table: nft.Table{Family: nft.IP, Name: name}, mark: 1 << markBit}
	addr := nft.IPv4Addr
	if f == proxy.IPv6 {
		t.Table.Family, addr = nft.IP6, nft.IPv6Addr
	}
	set := func(name, comment string, key ...nft.Type) *nft.Set {
		return &nft.Set{Table: t.Table, Name: name, Key: key, Comment: comment}
	}
	verdicts := func(s *nft.Set) *nft.Set { s.Verdicts = true; return s }
	values := func(s *nft.Set) *nft.Set { s.Data = []nft.Type{addr, nft.Port}; return s }

	t.addresses = space{
		prefix: "lb", byAddress: true,
		dispatch:  verdicts(set("services", "Service addresses", addr, nft.Proto, nft.Port)),
		locals:    verdicts(set("locals", "externalTrafficPolicy Local, for clients from elsewhere", addr, nft.Proto, nft.Port)),
		empty:     verdicts(set("no-endpoints", "Service addresses without an endpoint to go to", addr, nft.Proto, nft.Port)),
		endpoints: values(set("endpoints", "the endpoint in each slot of a Service address", addr, nft.Proto, nft.Port, nft.Mark)),
	}
	t.nodePorts = space{
		prefix:    "np",
		dispatch:  verdicts(set("nodeports", "NodePorts", nft.Proto, nft.Port)),
		locals:    verdicts(set("nodeport-locals", "externalTrafficPolicy Local, for clients from elsewhere", nft.Proto, nft.Port)),
		empty:     verdicts(set("nodeport-no-endpoints", "NodePorts without an endpoint to go to", nft.Proto, nft.Port)),
		endpoints: values(set("nodeport-endpoints", "the endpoint in each slot of a NodePort", nft.Proto, nft.Port, nft.Mark)),
	}
	t.clusterIPs = set("cluster-ips", "all ClusterIPs", addr)
	t.hairpins = set("hairpins", "pods that may be sent to themselves", addr, addr, nft.Proto, nft.Port)
	t.restricted = set("restricted", "addresses with loadBalancerSourceRanges", addr, nft.Proto, nft.Port)
	t.allowed = set("allowed", "clients allowed by loadBalancerSourceRanges", addr, nft.Proto, nft.Port, addr)
	t.allowed.Interval = true
	t.affinity = set("affinity", "clients with an endpoint of their own", addr, nft.Mark)
	t.affinity.Dynamic, t.affinity.Size = true, affinitySize
	return t
}

// sets returns all sets, in the order in which they are written: what is
// referred to by a lookup comes before what leads to it.
func (t *table) sets() []*nft.Set {
	return []*nft.Set{
		t.addresses.endpoints, t.nodePorts.endpoints, t.hairpins, t.clusterIPs,
		t.allowed, t.restricted,
		t.addresses.locals, t.nodePorts.locals,
		t.addresses.empty, t.nodePorts.empty,
		t.addresses.dispatch, t.nodePorts.dispatch,
		t.affinity,
	}
}

// shared reports whether elements of a set may belong to several rows.
func (t *table) shared(s *nft.Set) bool { return s == t.clusterIPs || s == t.hairpins }

// space returns the space of a kind of frontend.
func (t *table) space(k proxy.Kind) *space {
	if k == proxy.NodePort {
		return &t.nodePorts
	}
	return &t.addresses
}

// key returns a frontend's key in the maps of its space.
func (s *space) key(p proxy.Protocol, f netip.AddrPort) string {
	b := make([]byte, 0, 28)
	if s.byAddress {
		b = append(b, f.Addr().AsSlice()...)
	}
	b = append(b, byte(p), 0, 0, 0)
	b = appendPort(b, f.Port())
	return string(b)
}

// appendPort appends a port as it is in a register of its own.
func appendPort(b []byte, port uint16) []byte { return append(b, byte(port>>8), byte(port), 0, 0) }
