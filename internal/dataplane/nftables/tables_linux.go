package nftables

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

const tableName = "sluice"

// Alone are the rules without an overlay.
var Alone = Overlay{Table: tableName}

// affinitySize bounds how many clients are remembered, over all Services. When
// it is reached, new clients are balanced without being remembered. An entry
// takes about a hundred bytes of the kernel's memory.
const affinitySize = 1 << 20

// table is one family's table: its sets, and what differs between families.
type table struct {
	family proxy.Family
	nft.Table
	mark     uint32 // the bit of the packet mark that asks for masquerading
	resetTCP bool   // refuse TCP connections by a reset

	addresses frontendMaps // frontends with an address of their own
	nodePorts frontendMaps // frontends on the node's addresses

	classSet   *nft.Set // class -> chain
	clusterIPs *nft.Set // all ClusterIPs, to refuse their other ports
	onLink     *nft.Set // addresses that are the node's because of the overlay
	hairpins   *nft.Set // client . endpoint pairs that are one pod
	restricted *nft.Set // frontend -> the chain that refuses clients, with source ranges
	affinity   *nft.Set // client . list -> id of the endpoint it is remembered for

	refusals [len(refusalReasons)]*nft.Set // what clients sent to that was refused, with a count

	// The numbers that were given, which the kernel may have.
	classes   *classes
	blocks    *blocks
	recovered bool             // those of a former process are known
	rank      map[*nft.Set]int // when a set's elements are written

	over Overlay

	syncFailures, cleanupFailures atomic.Int64 // the latter of chains that could not be deleted
}

// frontendMaps are the maps of one way to say which frontend a packet is for:
// by address, protocol and port, or by protocol and port alone.
type frontendMaps struct {
	byAddress bool
	dnat      string   // the chain that sends a packet to its endpoint
	dispatch  *nft.Set // frontend -> class
	external  *nft.Set // frontend -> class of externalTrafficPolicy Local, for our pods and the node
	locals    *nft.Set // frontend -> class of the Local list, for clients from elsewhere
	empty     *nft.Set // frontends without an endpoint, for clients from elsewhere at least -> what becomes of packets
	endpoints *nft.Set // frontend . slot or id -> endpoint
	lists     *nft.Set // frontend -> its list's number, with session affinity
	ids       *nft.Set // frontend . slot -> endpoint's id, with session affinity
}

func newTable(f proxy.Family, markBit uint8, over Overlay) *table {
	t := &table{
		family: f, Table: nft.Table{Family: nft.IP, Name: over.Table}, mark: 1 << markBit, over: over,
		classes: newClasses(), blocks: newBlocks(), rank: map[*nft.Set]int{},
	}
	addr := nft.IPv4Addr
	if f == proxy.IPv6 {
		t.Table.Family, addr = nft.IP6, nft.IPv6Addr
	}
	t.addresses = t.newFrontendMaps("", addr, addr, nft.Proto, nft.Port)
	t.addresses.byAddress = true
	t.nodePorts = t.newFrontendMaps("nodeport-", addr, nft.Proto, nft.Port)
	t.classSet = t.set("classes", "how an endpoint is chosen", nft.ClassID)
	t.classSet.Verdicts = true
	t.clusterIPs = t.set("cluster-ips", "all ClusterIPs", addr)
	t.onLink = t.set("link-addresses", "addresses of Services on a link of ours", addr)
	t.hairpins = t.set("hairpins", "pods that may be sent to themselves", addr, addr, nft.Proto, nft.Port)
	t.restricted = t.set("source-ranges", "addresses with loadBalancerSourceRanges", addr, nft.Proto, nft.Port)
	t.restricted.Verdicts = true
	t.affinity = t.set("affinity", "clients and the endpoints they are remembered for", addr, nft.ClassID)
	t.affinity.Data, t.affinity.Dynamic, t.affinity.Size = []nft.Type{nft.ClassID}, true, affinitySize
	for i, why := range refusalReasons {
		t.refusals[i] = t.set(why.chain, "packets that were refused: "+why.comment, addr, nft.Proto, nft.Port)
		t.refusals[i].Dynamic, t.refusals[i].Size = true, refusalsSize
	}
	for i, s := range t.sets() {
		t.rank[s] = rankElements + i
	}
	return t
}

func (t *table) set(name, comment string, key ...nft.Type) *nft.Set {
	return &nft.Set{Table: t.Table, Name: name, Key: key, Comment: comment}
}

func (t *table) newFrontendMaps(prefix string, addr nft.Type, key ...nft.Type) frontendMaps {
	set := func(name, comment string, data ...nft.Type) *nft.Set {
		s := t.set(prefix+name, comment, key...)
		s.Data = data
		return s
	}
	m := frontendMaps{
		dnat:      cmp.Or(prefix, "service-") + "dnat", // dnat alone is a word of the nft program
		dispatch:  set("services", "Services: their class, and 800:0 if it is a ClusterIP", nft.ClassID),
		external:  set("external", "externalTrafficPolicy Local, for our pods and the node", nft.ClassID),
		locals:    set("locals", "externalTrafficPolicy Local, for clients from elsewhere", nft.ClassID),
		empty:     set("no-endpoints", "Services without an endpoint: refused, or dropped if only this node has none", nft.ClassID),
		endpoints: set("endpoints", "the endpoint in each slot of a Service, or with each id", addr, nft.Port),
		lists:     set("lists", "the list of endpoints, with session affinity", nft.ClassID),
		ids:       set("ids", "the endpoint's id in each slot of a Service, with session affinity", nft.ClassID),
	}
	m.endpoints.Key = append(slices.Clip(key), nft.ClassID)
	m.ids.Key = m.endpoints.Key
	return m
}

// sets returns all sets, in the order in which they are written: what is
// referred to by a lookup comes before what leads to it, and what is dropped
// before clients are kept from going elsewhere.
func (t *table) sets() []*nft.Set {
	a, n := &t.addresses, &t.nodePorts
	all := []*nft.Set{
		a.endpoints, n.endpoints, a.ids, n.ids, a.lists, n.lists, t.hairpins, t.clusterIPs,
		t.restricted, t.classSet,
		a.empty, n.empty, a.locals, n.locals, a.external, n.external,
		a.dispatch, n.dispatch,
		t.affinity,
	}
	all = append(all, t.refusals[:]...)
	if t.over.OnLink {
		all = append(all, t.onLink)
	}
	return all
}

// frontends returns the maps of NodePorts or of all other kinds of frontend.
func (t *table) frontends(nodePort bool) *frontendMaps {
	if nodePort {
		return &t.nodePorts
	}
	return &t.addresses
}

func (m *frontendMaps) key(p proxy.Protocol, f netip.AddrPort) string {
	b := make([]byte, 0, 28)
	if m.byAddress {
		b = append(b, f.Addr().AsSlice()...)
	}
	b = append(b, byte(p), 0, 0, 0)
	b = appendPort(b, f.Port())
	return string(b)
}

// appendPort appends a port as it is in a register of its own.
func appendPort(b []byte, port uint16) []byte { return append(b, byte(port>>8), byte(port), 0, 0) }
