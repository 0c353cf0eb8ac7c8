package traffic

import (
	"net/netip"
	"time"

	"sluice/internal/proxy"
)

// Counts is what was counted of something.
type Counts struct {
	proxy.Traffic
	Carried bool // bytes and packets are counted
	Refused map[proxy.Reason]uint64
}

// Row is the counts of one row.
type Row struct {
	Key proxy.PortKey
	Counts
	Endpoints map[netip.AddrPort]Counts // of the row, that had traffic
}

// Rows returns what the last Refresh has counted of the rows that had traffic, in
// no order, and when that was.
func (c *Collector) Rows(which func(proxy.PortKey) bool) (all []Row, counted time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, r := range c.rows {
		if !which(key) {
			continue
		}
		row := Row{Key: key, Counts: c.counts(r), Endpoints: map[netip.AddrPort]Counts{}}
		for a, m := range r.endpoints {
			if m != nil && !m.idle() {
				row.Endpoints[a] = Counts{Traffic: m.total(), Carried: row.Carried}
			}
		}
		all = append(all, row)
	}
	return all, c.counted
}

func (c *Collector) counts(r *row) Counts {
	n := Counts{Traffic: r.total(), Carried: c.settings.Bytes}
	for i, packets := range r.refused {
		if packets > 0 {
			if n.Refused == nil {
				n.Refused = map[proxy.Reason]uint64{}
			}
			n.Refused[reasons[i]] = packets
		}
	}
	return n
}

// shown is what metrics tell. It does not change.
type shown struct {
	services, endpoints []line
	folded              int // services that share a series
}

// line is the values of a Service port or an endpoint.
type line struct {
	labels []string
	proxy.Traffic
	carried bool // bytes and packets are counted

	// Of Service ports only.
	refused refusals
	states  [len(states)]int
	folded  bool // it stands for many, of whose endpoints nothing is told
}

// show makes what metrics tell.
func (c *Collector) show() {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &shown{folded: len(c.services) - c.owners, services: make([]line, 0, c.owners+1)}
	at := make(map[*series]int, c.owners+1)
	lineOf := func(s *series) *line {
		i, ok := at[s]
		if !ok {
			i = len(out.services)
			at[s] = i
			out.services = append(out.services, line{
				labels: []string{s.namespace, s.name, s.port}, folded: s == &c.fold, carried: c.settings.Bytes,
				Traffic: s.retired.traffic(0), refused: s.retiredRefused,
			})
		}
		return &out.services[i]
	}
	if c.fold.retired != (tally{}) || c.fold.retiredRefused != (refusals{}) {
		lineOf(&c.fold)
	}
	for _, r := range c.rows {
		l := lineOf(r.service.series)
		l.add(r)
		if c.settings.Endpoints && !l.folded {
			out.endpoints = append(out.endpoints, r.endpointLines(l)...)
		}
	}
	c.shown.Store(out)
	c.counted = time.Now()
}

// add adds a row to the line that it is a part of.
func (l *line) add(r *row) {
	n := r.total()
	l.Connections += n.Connections
	l.Active += n.Active
	for _, d := range proxy.Directions {
		l.Bytes[d] += n.Bytes[d]
		l.Packets[d] += n.Packets[d]
	}
	for i, packets := range r.refused {
		l.refused[i] += packets
	}
	for is, n := range endpointStates(r.sp) {
		l.states[is] += n
	}
}

// endpointLines returns the lines of a row's endpoints.
func (r *row) endpointLines(service *line) (out []line) {
	for a, m := range r.endpoints {
		if m != nil && !m.idle() {
			labels := append(service.labels[:3:3], a.String())
			out = append(out, line{labels: labels, Traffic: m.total(), carried: service.carried})
		}
	}
	return out
}
