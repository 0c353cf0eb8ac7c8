package traffic

import (
	"net/netip"
	"strconv"

	"sluice/internal/proxy"
)

// folded is the value of all labels of the series that the Service ports beyond the limit share. It
// is not a valid name of a Service.
const folded = "_folded"

// reasons are the reasons for which a frontend refuses packets.
var reasons = [...]proxy.Reason{proxy.NoEndpoints, proxy.NoLocalEndpoint, proxy.SourceRange}

// refusals is the number of refused packets, by index in reasons.
type refusals [len(reasons)]uint64

// row has the counts of one row.
type row struct {
	meter
	key       proxy.PortKey
	sp        *proxy.ServicePort
	listIndex int                       // in Collector.list
	endpoints map[netip.AddrPort]*meter // all endpoints of the row; nil if an endpoint has no counts yet
	meters    []*meter                  // of the row and of its endpoints
	refused   refusals
	service   *service
}

// service is a Service port, which has a row in each family.
type service struct {
	series *series
	rows   int
}

// series is the labels of a Service port, or of all that are folded.
type series struct {
	namespace, name, port string

	// What removed rows had counted.
	retired        tally
	retiredRefused refusals
}

// state is the relation of an endpoint to this node.
type state uint8

const (
	local    state = iota // in use, on this node
	remote                // in use, elsewhere
	draining              // keeps its flows, gets no new ones
)

var states = [...]state{local, remote, draining}

func (s state) String() string { return [...]string{"local", "remote", "draining"}[s] }

// rowFor returns the counts of a row. A row without counts gets a series of its own or shares the
// folded one.
func (c *Collector) rowFor(sp *proxy.ServicePort) *row {
	r := c.rows[sp.Key]
	if r != nil {
		return r
	}
	s := c.services[sp.Key.ServicePortName]
	if s == nil {
		s = &service{series: &c.foldedSeries}
		if len(c.ownSeries) < c.settings.MaxSeries {
			s.series = &series{namespace: sp.Key.Namespace, name: sp.Key.Name, port: portLabel(sp)}
			c.ownSeries[s.series] = true
		}
		c.services[sp.Key.ServicePortName] = s
	}
	s.rows++
	r = &row{key: sp.Key, service: s, listIndex: len(c.list)}
	r.setRow(sp)
	c.rows[sp.Key], c.list = r, append(c.list, r)
	return r
}

// setRow replaces the row and its endpoints. Counts of endpoints that it no longer has are dropped.
func (r *row) setRow(sp *proxy.ServicePort) {
	was := r.endpoints
	r.sp, r.endpoints = sp, make(map[netip.AddrPort]*meter, len(sp.Cluster))
	for _, list := range [][]proxy.Endpoint{sp.Cluster, sp.Local} {
		for _, e := range list {
			r.endpoints[e.Addr] = was[e.Addr]
		}
	}
	for _, a := range sp.Draining {
		r.endpoints[a] = was[a]
	}
	r.meters = []*meter{&r.meter}
	for _, m := range r.endpoints {
		if m != nil {
			r.meters = append(r.meters, m)
		}
	}
}

// endpoint returns the meter of an endpoint, or nil if it is not an endpoint of the row.
func (r *row) endpoint(a netip.AddrPort) *meter {
	m, ok := r.endpoints[a]
	if ok && m == nil {
		m = &meter{}
		r.endpoints[a], r.meters = m, append(r.meters, m)
	}
	return m
}

// removeRow removes the counts of a row. If its series remains, the series keeps them.
func (c *Collector) removeRow(key proxy.PortKey) {
	r := c.rows[key]
	if r == nil {
		return
	}
	delete(c.rows, key)
	last := len(c.list) - 1
	c.list[r.listIndex], c.list[last].listIndex = c.list[last], r.listIndex
	c.list[last], c.list = nil, c.list[:last]
	s := r.service.series
	s.retired.add(r.shown)
	s.retired.add(r.mode)
	for i, n := range r.refused {
		s.retiredRefused[i] += n
	}
	if r.service.rows--; r.service.rows > 0 {
		return
	}
	delete(c.services, key.ServicePortName)
	delete(c.ownSeries, s)
}

// portLabel returns the name of a port, or its number if it has no name.
func portLabel(sp *proxy.ServicePort) string {
	if sp.Key.Port != "" || len(sp.Frontends) == 0 {
		return sp.Key.Port
	}
	return strconv.Itoa(int(sp.Frontends[0].Addr.Port()))
}

// countEndpoints counts the endpoints of a row by state.
func countEndpoints(sp *proxy.ServicePort) (n [len(states)]int) {
	onNode := proxy.AddressesOf(sp.Local)
	n[local], n[draining] = len(sp.Local), len(sp.Draining)
	for _, e := range sp.Cluster {
		switch {
		case onNode[e.Addr]:
		case e.Local:
			n[local]++
		default:
			n[remote]++
		}
	}
	return n
}
