package figures

import "time"

// Floor is the lower bounds at one size: the same measurements without a proxy.
type Floor struct {
	Size    Size      `json:"size"`
	Date    time.Time `json:"date"`
	Watches []Change  `json:"watches"` // by a client that only receives events; CPU of a process that only watches
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

// Watch returns the events received at a rate of other changes, or nil.
func (f *Floor) Watch(rate int) *Change {
	return find(f.Watches, func(w *Change) bool { return w.Rate == rate && len(w.Samples) > 0 })
}

// Change returns the minimum time of a change from the API server's answer to traffic. An event
// that arrives before the answer counts as arriving with it.
func (f *Floor) Change(rate int) Figure {
	return f.change(rate, func(w *Change) Seconds { return max(Percentile(w.Samples, 50), 0) })
}

// WithCall is Change since the update was sent.
func (f *Floor) WithCall(rate int) Figure {
	return f.change(rate, func(w *Change) Seconds { return Percentile(sums(w.Calls, w.Samples), 50) })
}

func (f *Floor) change(rate int, event func(w *Change) Seconds) Figure {
	if w := f.Watch(rate); w != nil {
		return (event(w) + f.Element + f.Connect).figure(false)
	}
	return Figure{Text: notMeasured}
}

// ColdStart returns the minimum time of a start, without starting the process.
func (f *Floor) ColdStart() Seconds { return f.List + f.Write + f.Sweep }
