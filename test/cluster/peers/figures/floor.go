package figures

import "time"

// Floor is what could not be less at one size: the same without a proxy.
type Floor struct {
	Size    Size      `json:"size"`
	Date    time.Time `json:"date"`
	Watches []Change  `json:"watches"` // of a client that only receives events, and a process that only watches
	Element Seconds   `json:"element"` // to write a change of one endpoint over netlink
	Connect Seconds   `json:"connect"` // one new connection, without any rules
	List    Seconds   `json:"list"`    // to read all objects from the API server
	Write   Seconds   `json:"write"`   // to write as many elements over netlink
	Sweep   Seconds   `json:"sweep"`   // to ask as many endpoints directly as there are Services
	TCP     Bare      `json:"tcp"`
	UDP     Bare      `json:"udp"`
	Missing string    `json:"missing,omitempty"`
}

// Bare is new connections on a node without rules.
type Bare struct {
	PerSecond float64 `json:"perSecond"`
	Latency
}

// watched returns a figure of the watch at a rate, if there is one.
func (f *Floor) watched(rate int, figure func(w *Change) Figure) Figure {
	w := find(f.Watches, func(w *Change) bool { return w.Rate == rate && len(w.Samples) > 0 })
	if w == nil {
		return Figure{Text: notMeasured}
	}
	return figure(w)
}

// PerUpdate returns the CPU time that one update costs a process that only watches.
func (f *Floor) PerUpdate(rate int) Figure {
	return f.watched(rate, func(w *Change) Figure {
		if w.CPU == 0 || w.Updates == 0 {
			return Figure{Text: notMeasured}
		}
		return w.PerUpdate().figure(false)
	})
}

// Event returns how long after the API server's answer the event comes, p50.
func (f *Floor) Event(rate int) Figure {
	return f.watched(rate, func(w *Change) Figure { return Percentile(w.Samples, 50).figure(false) })
}

// Change returns the least that a change can take from the API server's answer
// to traffic. An event that comes before the answer counts as if it came with it.
func (f *Floor) Change(rate int) Figure {
	return f.watched(rate, func(w *Change) Figure {
		return (max(Percentile(w.Samples, 50), 0) + f.Element + f.Connect).figure(false)
	})
}

// WithCall is Change from the moment that the update was sent.
func (f *Floor) WithCall(rate int) Figure {
	return f.watched(rate, func(w *Change) Figure {
		return (Percentile(sums(w.Calls, w.Samples), 50) + f.Element + f.Connect).figure(false)
	})
}

// ColdStart returns the least that a start can take, without the process.
func (f *Floor) ColdStart() Seconds { return f.List + f.Write + f.Sweep }
