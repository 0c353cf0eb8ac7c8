package figures

import "time"

// Floor is what could not be less at one size: the same without a proxy.
type Floor struct {
	Size    Size      `json:"size"`
	Date    time.Time `json:"date"`
	Watches []Watch   `json:"watches"`
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

// Watch is a client that only receives events.
type Watch struct {
	Rate     int       `json:"rate"` // wanted changes of others, per second
	Achieved float64   `json:"achieved"`
	Samples  []Seconds `json:"samples"` // from the API server's answer to the event; less than 0: it came before
	Calls    []Seconds `json:"calls"`   // of each sample: the update call itself, before that
	Updates  int       `json:"updates"` // all changes in the window, the samples included
	CPU      Seconds   `json:"cpu"`     // of a process that only watches, in the window; 0: not measured
}

// watch returns the watch at a rate, or nil.
func (f *Floor) watch(rate int) *Watch {
	for i := range f.Watches {
		if w := &f.Watches[i]; w.Rate == rate && len(w.Samples) > 0 {
			return w
		}
	}
	return nil
}

// PerUpdate returns the CPU time that one update costs a process that only
// watches, and false if it was not measured.
func (f *Floor) PerUpdate(rate int) (Seconds, bool) {
	w := f.watch(rate)
	if w == nil || w.CPU == 0 || w.Updates == 0 {
		return 0, false
	}
	return w.CPU / Seconds(w.Updates), true
}

// Event returns how long after the API server's answer the event comes, p50.
func (f *Floor) Event(rate int) (Seconds, bool) {
	w := f.watch(rate)
	if w == nil {
		return 0, false
	}
	return Percentile(w.Samples, 50), true
}

// Change returns the least that a change can take from the API server's answer
// to traffic, and false if it was not measured. An event that comes before the
// answer counts as if it came with it.
func (f *Floor) Change(rate int) (Seconds, bool) {
	event, ok := f.Event(rate)
	return max(event, 0) + f.Element + f.Connect, ok
}

// Whole is Change from the moment that the update was sent.
func (f *Floor) Whole(rate int) (Seconds, bool) {
	w := f.watch(rate)
	if w == nil {
		return 0, false
	}
	return Percentile(sums(w.Calls, w.Samples), 50) + f.Element + f.Connect, true
}

// ColdStart returns the least that a start can take, without the process.
func (f *Floor) ColdStart() Seconds { return f.List + f.Write + f.Sweep }
