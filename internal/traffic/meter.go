package traffic

import (
	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// tally is one count of each kind.
type tally [5]uint64

const (
	connections = iota
	bytesIn
	bytesOut
	packetsIn
	packetsOut
)

func (t *tally) add(n tally) {
	for i := range t {
		t[i] += n[i]
	}
}

// ofFlow is what a flow counts.
func ofFlow(f *ct.Flow) tally {
	c := &f.Carried
	return tally{1, c.Orig.Bytes, c.Reply.Bytes, c.Orig.Packets, c.Reply.Packets}
}

// ofTraffic is what a mode counted.
func ofTraffic(t *proxy.Traffic) tally {
	return tally{t.Connections, t.Bytes[proxy.In], t.Bytes[proxy.Out], t.Packets[proxy.In], t.Packets[proxy.Out]}
}

func (t tally) traffic(active uint64) proxy.Traffic {
	return proxy.Traffic{
		Connections: t[connections], Active: active,
		Bytes: [...]uint64{t[bytesIn], t[bytesOut]}, Packets: [...]uint64{t[packetsIn], t[packetsOut]},
	}
}

// since is how much more there is than before; what is less began anew.
func (t tally) since(before tally) tally {
	for i := range t {
		if t[i] >= before[i] {
			t[i] -= before[i]
		}
	}
	return t
}

// meter counts what belongs to a row or to an endpoint of one.
type meter struct {
	ended  tally // flows that have ended
	before tally // the same, when the last dump began
	live   tally // flows that it has seen
	open   uint64
	amend  [len(tally{})]int64 // what dumps and events do not tell
	shown  tally               // what they came to at last

	own     tally // what the mode has counted
	ownOpen uint64

	active uint64 // what is shown
}

// begin prepares for a dump.
func (m *meter) begin() { m.before, m.live, m.open = m.ended, tally{}, 0 }

// see takes a flow of the dump.
func (m *meter) see(n tally, f *ct.Flow) {
	m.live.add(n)
	if !f.Closed {
		m.open++
	}
}

// settle takes what a dump has come to. Flows that ended before it began are not
// in it, so ended flows of then and live ones are never too many. Those that ended
// until after it may be in both, so ended flows of now and live ones are never too
// few, but for flows whose end was not told. If even that is less than what was
// shown, such flows have gone, and are kept.
//
// Of a dump that is the first it is not known when flows carried what they have,
// so that is left out.
func (m *meter) settle(first bool) {
	for i := range m.shown {
		if first && i != connections {
			m.amend[i] = -int64(m.live[i])
		}
		live := int64(m.live[i]) + m.amend[i]
		if gone := int64(m.shown[i]) - (live + int64(m.ended[i])); gone > 0 {
			m.amend[i] += gone
			live += gone
		}
		m.shown[i] = uint64(max(int64(m.shown[i]), live+int64(m.before[i])))
	}
	m.active = m.open
}

// total is what is to be shown.
func (m *meter) total() proxy.Traffic {
	n := m.shown
	n.add(m.own)
	return n.traffic(m.active + m.ownOpen)
}

// idle reports whether there is nothing to show.
func (m *meter) idle() bool { return m.shown == tally{} && m.own == tally{} && m.active+m.ownOpen == 0 }
