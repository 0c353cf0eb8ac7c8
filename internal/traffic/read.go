package traffic

import (
	"net/netip"
	"slices"
	"time"

	"sluice/internal/proxy"
)

// Counts is the traffic of a row or of an endpoint.
type Counts struct {
	proxy.Traffic
	Carried bool // bytes and packets are counted
	Failing bool // failed connections are counted
	Refused map[proxy.Reason]uint64
}

// Row is the traffic of one row.
type Row struct {
	Key proxy.PortKey
	Counts
	Endpoints map[netip.AddrPort]Counts // the endpoints of the row that had traffic
}

// Rows returns the counts of the last Refresh, for all rows that had traffic, in no particular
// order, and when they were counted.
func (c *Collector) Rows() (out []Row, counted time.Time) {
	c.mu.Lock()
	all, counted := slices.Clone(c.list), c.counted
	c.mu.Unlock()
	return c.read(all), counted
}

// RowsOf is like Rows for some rows, at a cost that is proportional to their number.
func (c *Collector) RowsOf(keys []proxy.PortKey) []Row {
	var some []*row
	c.mu.Lock()
	for _, key := range keys {
		if r := c.rows[key]; r != nil {
			some = append(some, r)
		}
	}
	c.mu.Unlock()
	return c.read(some)
}

// read returns the counts of rows.
func (c *Collector) read(some []*row) (out []Row) {
	c.visit(some, func(r *row) {
		row := Row{Key: r.key, Counts: c.counts(r), Endpoints: make(map[netip.AddrPort]Counts, len(r.meters)-1)}
		for a, m := range r.endpoints {
			if m != nil && !m.idle() {
				row.Endpoints[a] = Counts{Traffic: m.total(), Carried: row.Carried, Failing: row.Failing}
			}
		}
		out = append(out, row)
	})
	return out
}

func (c *Collector) counts(r *row) Counts {
	n := Counts{Traffic: r.total(), Carried: c.settings.Bytes, Failing: c.settings.Failures}
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

// snapshot is what metrics report. It is immutable.
type snapshot struct {
	services, endpoints []line
	folded              int // Service ports that share a series
}

// line is the values of a Service port or of an endpoint.
type line struct {
	labels []string
	proxy.Traffic
	carried bool // bytes and packets are counted
	failing bool // failed connections are counted

	// For Service ports only.
	refused refusals
	states  [len(states)]int
	folded  bool // the line is the shared one, which does not report endpoints
}

// publish makes a new snapshot. Which rows there are, and what series have from removed rows, is
// read under one lock, so that nothing is counted twice or not at all.
func (c *Collector) publish() {
	c.mu.Lock()
	all := slices.Clone(c.list)
	out := &snapshot{folded: len(c.services) - len(c.ownSeries)}
	at := make(map[*series]*line, len(c.ownSeries)+1)
	for s := range c.ownSeries {
		at[s] = c.line(s)
	}
	at[&c.foldedSeries] = c.line(&c.foldedSeries)
	c.counted = time.Now()
	c.mu.Unlock()
	c.visit(all, func(r *row) {
		l := at[r.service.series]
		l.add(r)
		if c.settings.Endpoints && !l.folded {
			out.endpoints = append(out.endpoints, r.endpointLines(l)...)
		}
	})
	for _, l := range at {
		if !l.folded || l.Connections > 0 || l.refused != (refusals{}) {
			out.services = append(out.services, *l)
		}
	}
	c.shown.Store(out)
}

// line returns a line with what a series has from removed rows.
func (c *Collector) line(s *series) *line {
	return &line{
		labels: []string{s.namespace, s.name, s.port}, folded: s == &c.foldedSeries, carried: c.settings.Bytes, failing: c.settings.Failures,
		Traffic: s.retired.traffic(0), refused: s.retiredRefused,
	}
}

// add adds the counts of a row to the line that it is part of.
func (l *line) add(r *row) {
	n := r.total()
	l.Connections += n.Connections
	l.Active += n.Active
	l.Failed += n.Failed
	for _, d := range proxy.Directions {
		l.Bytes[d] += n.Bytes[d]
		l.Packets[d] += n.Packets[d]
	}
	for i, packets := range r.refused {
		l.refused[i] += packets
	}
	if l.folded {
		return
	}
	for i, n := range countEndpoints(r.sp) {
		l.states[i] += n
	}
}

// endpointLines returns the lines of a row's endpoints.
func (r *row) endpointLines(service *line) (out []line) {
	for a, m := range r.endpoints {
		if m != nil && !m.idle() {
			labels := append(service.labels[:3:3], a.String())
			out = append(out, line{labels: labels, Traffic: m.total(), carried: service.carried, failing: service.failing})
		}
	}
	return out
}
