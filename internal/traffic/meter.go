package traffic

import (
	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// tally has a count of each kind, indexed by the constants below.
type tally [6]uint64

const (
	connections = iota
	bytesIn
	bytesOut
	packetsIn
	packetsOut
	failures
)

func (t *tally) add(n tally) {
	for i := range t {
		t[i] += n[i]
	}
}

// tallyOfFlow returns the counts of a single flow. A TCP or SCTP connection that has ended
// without an answer has failed; UDP needs no answer.
func tallyOfFlow(f *ct.Flow, ended bool) tally {
	c := &f.Carried
	t := tally{1, c.Orig.Bytes, c.Reply.Bytes, c.Orig.Packets, c.Reply.Packets}
	if ended && !f.Answered && proxy.Protocol(f.Protocol) != proxy.UDP {
		t[failures] = 1
	}
	return t
}

// tallyOfTraffic returns the counts of a mode.
func tallyOfTraffic(t *proxy.Traffic) tally {
	return tally{t.Connections, t.Bytes[proxy.In], t.Bytes[proxy.Out], t.Packets[proxy.In], t.Packets[proxy.Out], t.Failed}
}

func (t tally) traffic(active uint64) proxy.Traffic {
	return proxy.Traffic{
		Connections: t[connections], Active: active, Failed: t[failures],
		Bytes: [...]uint64{t[bytesIn], t[bytesOut]}, Packets: [...]uint64{t[packetsIn], t[packetsOut]},
	}
}

// since returns the growth from before to t. A count that has decreased was reset, and all of it is
// growth.
func (t tally) since(before tally) tally {
	for i := range t {
		if t[i] >= before[i] {
			t[i] -= before[i]
		}
	}
	return t
}

// meter has the counts of a row or of one of its endpoints.
type meter struct {
	ended      tally               // flows that have ended
	before     tally               // ended, when the last dump began
	live       tally               // flows that the last dump contains
	open       uint64              // of these, connections that are not closed
	correction [len(tally{})]int64 // added to live, for flows that dumps and events miscount
	shown      tally               // the total that is reported; never decreases

	mode       tally // what the mode itself has counted
	modeActive uint64

	active uint64 // open, as of the last completed dump
}

// beginDump prepares for a dump.
func (m *meter) beginDump() { m.before, m.live, m.open = m.ended, tally{}, 0 }

// addLive adds a flow of the dump.
func (m *meter) addLive(n tally, f *ct.Flow) {
	m.live.add(n)
	if !f.Closed {
		m.open++
	}
}

// finishDump updates the total after a dump. Flows that ended before the dump began are not in it,
// so live flows plus the flows that had ended then never count a flow twice. Flows that ended later
// may be in both, so live flows plus all ended flows miss none, except those that ended without an
// event. If even this sum is less than the reported total, such flows have disappeared, and their
// counts are kept as a correction.
//
// For the first dump it is not known when live flows carried their bytes and packets, so these are
// left out.
func (m *meter) finishDump(first bool) {
	for i := range m.shown {
		if first && i != connections {
			m.correction[i] = -int64(m.live[i])
		}
		live := int64(m.live[i]) + m.correction[i]
		if gone := int64(m.shown[i]) - (live + int64(m.ended[i])); gone > 0 {
			m.correction[i] += gone
			live += gone
		}
		m.shown[i] = uint64(max(int64(m.shown[i]), live+int64(m.before[i])))
	}
	m.active = m.open
}

// total returns the counts to report.
func (m *meter) total() proxy.Traffic {
	n := m.shown
	n.add(m.mode)
	return n.traffic(m.active + m.modeActive)
}

// idle reports whether there is nothing to report.
func (m *meter) idle() bool {
	return m.shown == tally{} && m.mode == tally{} && m.active+m.modeActive == 0
}
