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

// Alone is the overlay of mode nftables itself: it takes nothing, and the rules translate all
// connections.
var Alone = Overlay{Table: tableName}

// affinitySize is the maximum number of clients that are remembered, for all Services
// together. When it is reached, connections of new clients are balanced without being remembered.
// An entry takes about a hundred bytes of the kernel's memory.
const affinitySize = 1 << 20

// table is the table of one family: its sets, and everything that differs between families.
type table struct {
	family proxy.Family
	nft.Table
	mark     uint32 // the bit of the packet mark that asks for masquerading
	resetTCP bool   // refuse TCP connections with a reset

	addresses frontendMaps // of frontends with their own address
	nodePorts frontendMaps // of frontends on the node's addresses

	classSet   *nft.Set // number of a class -> chain
	clusterIPs *nft.Set // all ClusterIPs, to refuse their other ports
	onLink     *nft.Set // addresses that the node has only because of the overlay
	hairpins   *nft.Set // source . destination of connections from a pod to itself
	restricted *nft.Set // frontend with source ranges -> chain that checks clients
	affinity   *nft.Set // client . list -> id of the client's endpoint

	refusals [len(refusalReasons)]*nft.Set // destination of refused packets, with a counter

	closedLoopback *nft.Set // protocol of packets that were refused at loopback addresses, with a counter

	classes   *classes
	blocks    *blocks
	recovered bool             // the numbers of a former process were taken over
	rank      map[*nft.Set]int // the rank of a set's elements

	overlay Overlay

	syncFailures    atomic.Int64
	cleanupFailures atomic.Int64 // chains and sets that could not be deleted
}

// frontendMaps are the maps whose keys start with a frontend: an address, a protocol and a
// port or, for NodePorts, a protocol and a port.
type frontendMaps struct {
	byAddress   bool     // keys start with the address
	dnat        string   // the chain that translates packets to their endpoint
	dispatch    *nft.Set // frontend -> class, or split
	external    *nft.Set // frontend with externalTrafficPolicy Local -> class for our pods and the node
	locals      *nft.Set // frontend with externalTrafficPolicy Local -> class for clients from elsewhere
	noEndpoints *nft.Set // frontend without an endpoint for clients from elsewhere -> rejected or dropped
	endpoints   *nft.Set // frontend . slot or id -> endpoint
	lists       *nft.Set // frontend with session affinity -> first id of the row's block
	ids         *nft.Set // frontend with session affinity . slot -> id of the endpoint
}

func newTable(f proxy.Family, markBit uint8, over Overlay) *table {
	t := &table{
		family: f, Table: nft.Table{Family: nft.IP, Name: over.Table}, mark: 1 << markBit, overlay: over,
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
	t.closedLoopback = t.set(refusedLoopback, "packets to NodePorts at loopback addresses that were refused", nft.Proto)
	t.closedLoopback.Dynamic, t.closedLoopback.Size = true, 1<<8
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
		dnat:        cmp.Or(prefix, "service-") + "dnat", // "dnat" alone is a keyword of nft
		dispatch:    set("services", "Services: their class, and 800:0 if it is a ClusterIP", nft.ClassID),
		external:    set("external", "externalTrafficPolicy Local, for our pods and the node", nft.ClassID),
		locals:      set("locals", "externalTrafficPolicy Local, for clients from elsewhere", nft.ClassID),
		noEndpoints: set("no-endpoints", "Services without an endpoint: refused, or dropped if only this node has none", nft.ClassID),
		endpoints:   set("endpoints", "the endpoint in each slot of a Service, or with each id", addr, nft.Port),
		lists:       set("lists", "the list of endpoints, with session affinity", nft.ClassID),
		ids:         set("ids", "the endpoint's id in each slot of a Service, with session affinity", nft.ClassID),
	}
	m.endpoints.Key = append(slices.Clip(key), nft.ClassID)
	m.ids.Key = m.endpoints.Key
	return m
}

// sets returns all sets in the order in which their elements are added. The elements that a
// lookup needs come before the elements that lead to the lookup. @no-endpoints comes before
// the maps that keep packets to a frontend from going elsewhere, so that these are refused
// from the start.
func (t *table) sets() []*nft.Set {
	a, n := &t.addresses, &t.nodePorts
	all := []*nft.Set{
		a.endpoints, n.endpoints, a.ids, n.ids, a.lists, n.lists, t.hairpins, t.clusterIPs,
		t.restricted, t.classSet,
		a.noEndpoints, n.noEndpoints, a.locals, n.locals, a.external, n.external,
		a.dispatch, n.dispatch,
		t.affinity,
	}
	all = append(append(all, t.refusals[:]...), t.closedLoopback)
	if t.overlay.OnLink {
		all = append(all, t.onLink)
	}
	return all
}

// mapsFor returns the maps of NodePorts, or of all other kinds of frontend.
func (t *table) mapsFor(nodePort bool) *frontendMaps {
	if nodePort {
		return &t.nodePorts
	}
	return &t.addresses
}

// key returns the key of a frontend, with every part padded to a register.
func (m *frontendMaps) key(p proxy.Protocol, f netip.AddrPort) string {
	b := make([]byte, 0, 28)
	if m.byAddress {
		b = append(b, f.Addr().AsSlice()...)
	}
	b = append(b, byte(p), 0, 0, 0)
	b = appendPort(b, f.Port())
	return string(b)
}

// appendPort appends a port, padded to a register.
func appendPort(b []byte, port uint16) []byte { return append(b, byte(port>>8), byte(port), 0, 0) }
