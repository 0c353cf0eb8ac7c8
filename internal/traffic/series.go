package traffic

import (
	"net/netip"
	"strconv"

	"sluice/internal/proxy"
)

// folded is what the labels of the one series say that stands for the Services
// beyond the limit. No Service can have the name.
const folded = "_folded"

// reasons are those for which packets are refused at a frontend.
var reasons = [...]proxy.Reason{proxy.NoEndpoints, proxy.NoLocalEndpoint, proxy.SourceRange}

// refusals is how many packets were refused, by the index of the reason.
type refusals [len(reasons)]uint64

// row is the counts of one row.
type row struct {
	meter
	key       proxy.PortKey
	sp        *proxy.ServicePort
	place     int                       // in the list of rows
	endpoints map[netip.AddrPort]*meter // all that the row has; nil: nothing was counted yet
	meters    []*meter                  // its own and those of endpoints
	refused   refusals
	service   *service
}

// service is the rows of a Service port, one of each family.
type service struct {
	series *series
	rows   int
}

// series is what is told of a Service port, or of all that are folded.
type series struct {
	namespace, name, port string

	// What rows had counted that are gone while the series is not.
	retired        tally
	retiredRefused refusals
}

// state is what an endpoint is to this node.
type state uint8

const (
	local    state = iota // used, and on this node
	remote                // used, and elsewhere
	draining              // keeps the flows that it has
)

var states = [...]state{local, remote, draining}

func (s state) String() string { return [...]string{"local", "remote", "draining"}[s] }

// adopt gives a row what it had before, or a part in a series.
func (c *Collector) adopt(sp *proxy.ServicePort) *row {
	r := c.rows[sp.Key]
	if r != nil {
		return r
	}
	s := c.services[sp.Key.ServicePortName]
	if s == nil {
		s = &service{series: &c.fold}
		if len(c.own) < c.settings.MaxSeries {
			s.series = &series{namespace: sp.Key.Namespace, name: sp.Key.Name, port: portLabel(sp)}
			c.own[s.series] = true
		}
		c.services[sp.Key.ServicePortName] = s
	}
	s.rows++
	r = &row{key: sp.Key, service: s, place: len(c.list)}
	r.become(sp)
	c.rows[sp.Key], c.list = r, append(c.list, r)
	return r
}

// become takes the endpoints that a row has now. Counts of others go.
func (r *row) become(sp *proxy.ServicePort) {
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

// endpoint returns the meter of an endpoint, or nil if the row does not have it.
func (r *row) endpoint(a netip.AddrPort) *meter {
	m, ok := r.endpoints[a]
	if ok && m == nil {
		m = &meter{}
		r.endpoints[a], r.meters = m, append(r.meters, m)
	}
	return m
}

// drop forgets a row. What was told under a name that stays is kept.
func (c *Collector) drop(key proxy.PortKey) {
	r := c.rows[key]
	if r == nil {
		return
	}
	delete(c.rows, key)
	last := len(c.list) - 1
	c.list[r.place], c.list[last].place = c.list[last], r.place
	c.list[last], c.list = nil, c.list[:last]
	s := r.service.series
	s.retired.add(r.shown)
	s.retired.add(r.own)
	for i, n := range r.refused {
		s.retiredRefused[i] += n
	}
	if r.service.rows--; r.service.rows > 0 {
		return
	}
	delete(c.services, key.ServicePortName)
	delete(c.own, s)
}

// portLabel is the name of a port, or its number where it has none.
func portLabel(sp *proxy.ServicePort) string {
	if sp.Key.Port != "" || len(sp.Frontends) == 0 {
		return sp.Key.Port
	}
	return strconv.Itoa(int(sp.Frontends[0].Addr.Port()))
}

// endpointStates counts the endpoints of a row.
func endpointStates(sp *proxy.ServicePort) (n [len(states)]int) {
	here := proxy.AddressesOf(sp.Local)
	n[local], n[draining] = len(sp.Local), len(sp.Draining)
	for _, e := range sp.Cluster {
		switch {
		case here[e.Addr]:
		case e.Local:
			n[local]++
		default:
			n[remote]++
		}
	}
	return n
}
