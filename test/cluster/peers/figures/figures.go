package figures

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Seconds is a length of time.
type Seconds float64

// Of returns a duration as seconds.
func Of(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// String returns the time with three digits and a unit that fits.
func (s Seconds) String() string {
	switch abs := max(s, -s); {
	case abs == 0:
		return "0"
	case abs < 1e-3:
		return strconv.FormatFloat(float64(s)*1e6, 'f', 0, 64) + " µs"
	case abs < 0.1:
		return strconv.FormatFloat(float64(s)*1e3, 'f', 2, 64) + " ms"
	case abs < 1:
		return strconv.FormatFloat(float64(s)*1e3, 'f', 0, 64) + " ms"
	case abs < 100:
		return strconv.FormatFloat(float64(s), 'f', 1, 64) + " s"
	default:
		return strconv.FormatFloat(float64(s), 'f', 0, 64) + " s"
	}
}

// Bytes is an amount of memory.
type Bytes int64

// String returns the amount in whole MiB.
func (b Bytes) String() string { return fmt.Sprintf("%d MiB", int64(math.Round(float64(b)/(1<<20)))) }

// Size is how large a cluster is.
type Size struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"` // of each Service
}

// String returns the size as flags and tables have it, such as 1000x10.
func (s Size) String() string { return fmt.Sprintf("%dx%d", s.Services, s.Endpoints) }

// ParseSize is the reverse of String.
func ParseSize(text string) (Size, error) {
	services, endpoints, _ := strings.Cut(text, "x")
	var s Size
	var err error
	if s.Services, err = strconv.Atoi(services); err != nil || s.Services < 1 {
		return s, fmt.Errorf("read size %q: want Services x endpoints, such as 1000x10", text)
	}
	if s.Endpoints, err = strconv.Atoi(endpoints); err != nil || s.Endpoints < 1 {
		return s, fmt.Errorf("read size %q: want Services x endpoints, such as 1000x10", text)
	}
	return s, nil
}

// Report is everything that is known.
type Report struct {
	Machine  Machine   `json:"machine"` // of the latest run
	Settings []Setting `json:"settings"`
	Floors   []Floor   `json:"floors"`
	Results  []Result  `json:"results"`
}

// Machine is where it was measured.
type Machine struct {
	Date     time.Time         `json:"date"`
	Kernel   string            `json:"kernel"`
	CPU      string            `json:"cpu"`
	CPUs     int               `json:"cpus"`
	Memory   Bytes             `json:"memoryBytes"`
	Versions map[string]string `json:"versions"` // of programs, by name
}

// Setting is one of the run's own, such as how long a stage may take.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Result is what was measured of one peer at one size.
type Result struct {
	Peer string    `json:"peer"` // program/mode
	Size Size      `json:"size"`
	Date time.Time `json:"date"`
	Took Seconds   `json:"took"` // all of it

	ColdStart *ColdStart `json:"coldStart,omitempty"`
	Changes   []Change   `json:"changes,omitempty"`
	Idle      *Idle      `json:"idle,omitempty"`
	Memory    *Memory    `json:"memory,omitempty"`
	DataPath  *DataPath  `json:"dataPath,omitempty"`
	Restart   *Restart   `json:"restart,omitempty"`

	// Missing says for each stage that is not there why.
	Missing map[Stage]string `json:"missing,omitempty"`
}

// Stage is one of the things that are measured.
type Stage string

// The stages. One for changes has the rate of other changes in its name.
const (
	StageColdStart Stage = "cold start"
	StageIdle      Stage = "idle"
	StageMemory    Stage = "memory"
	StageDataPath  Stage = "data path"
	StageRestart   Stage = "restart"
)

// StageChange is that of changes while so many others happen each second.
func StageChange(rate int) Stage { return Stage(fmt.Sprintf("changes at %d/s", rate)) }

// Lacks notes why a stage is not there.
func (r *Result) Lacks(s Stage, why string) {
	if r.Missing == nil {
		r.Missing = map[Stage]string{}
	}
	r.Missing[s] = why
}

// Why says why a stage is not there.
func (r *Result) Why(s Stage) string {
	if why, ok := r.Missing[s]; ok {
		return why
	}
	return "not measured"
}

// Change returns the changes that were made while so many others happened each
// second, or nil.
func (r *Result) Change(rate int) *Change {
	for i := range r.Changes {
		if r.Changes[i].Rate == rate {
			return &r.Changes[i]
		}
	}
	return nil
}

// ColdStart is a start on a kernel without rules.
type ColdStart struct {
	First    Seconds `json:"first,omitempty"` // until the first Service answered; 0: none did
	Every    Seconds `json:"every"`           // until every one had, or until nobody waited any more
	Answered int     `json:"answered"`        // Services that had by then
	Of       int     `json:"of"`
	CPU      Seconds `json:"cpu"` // of the process and its children
	Kernel   Bytes   `json:"kernelBytes"`
}

// Done returns when every Service answered, or what that is more than.
func (c *ColdStart) Done() Bound { return Bound{Value: c.Every, More: c.Answered < c.Of} }

// Begun returns when the first Service answered, or what that is more than.
func (c *ColdStart) Begun() Bound {
	if c.First == 0 {
		return Bound{Value: c.Every, More: true}
	}
	return Bound{Value: c.First}
}

// Change is endpoints that were replaced one at a time.
type Change struct {
	Rate     int       `json:"rate"`     // wanted of others, per second
	Achieved float64   `json:"achieved"` // true rate of others
	Samples  []Seconds `json:"samples"`  // from the API server's answer to traffic, as they came
	Calls    []Seconds `json:"calls"`    // of each sample: the update call itself, before that
	Waiting  Seconds   `json:"waiting,omitempty"`
	Updates  int       `json:"updates"` // all changes in the window, the samples included
	Window   Seconds   `json:"window"`
	CPU      Seconds   `json:"cpu"` // of the process and its children in the window
}

// PerUpdate is the CPU time that one update cost.
func (c *Change) PerUpdate() Seconds {
	if c.Updates == 0 {
		return 0
	}
	return c.CPU / Seconds(c.Updates)
}

// Percentile returns a percentile of the samples.
func (c *Change) Percentile(percent float64) Bound { return percentile(c.Samples, c.Waiting, percent) }

// Whole returns a percentile of the samples with the update call, so from the
// moment that it was sent.
func (c *Change) Whole(percent float64) Bound {
	return percentile(sums(c.Calls, c.Samples), c.Waiting, percent)
}

// sums adds what is at the same place of two lists, as far as both go.
func sums(a, b []Seconds) []Seconds {
	var out []Seconds
	for i := range min(len(a), len(b)) {
		out = append(out, a[i]+b[i])
	}
	return out
}

// Idle is a proxy with nothing to do.
type Idle struct {
	CPU    Seconds `json:"cpu"`
	Window Seconds `json:"window"`
}

// Share is the part of one processor that it used.
func (i *Idle) Share() float64 { return float64(i.CPU / i.Window) }

// Memory is what a proxy occupied.
type Memory struct {
	Steady Bytes `json:"steady"` // after all changes
	Peak   Bytes `json:"peak"`
	// Largest is the peak of the process or of any of its children.
	Largest Bytes `json:"largest,omitempty"`
}

// Restart is a new start on a kernel that is right but for one change, which
// was made when no proxy ran.
type Restart struct {
	Followed Seconds `json:"followed"` // from the start until traffic followed that change
	CPU      Seconds `json:"cpu"`      // of the process and its children until then
	Asked    int     `json:"asked"`    // connections meanwhile, from the end of the old process
	Failed   int     `json:"failed"`
	Error    string  `json:"error,omitempty"` // of the first that failed
}

// DataPath is what connections cost, through a ClusterIP and without.
type DataPath struct {
	TCP  Pair    `json:"tcp"`
	UDP  Pair    `json:"udp"`
	Bulk Rates   `json:"bulkBytesPerSecond"`
	Took Seconds `json:"took"`
}

// Rates is a rate through a ClusterIP and directly to the endpoint.
type Rates struct {
	Service float64 `json:"service"`
	Direct  float64 `json:"direct"`
}

// Ratio is the part of the direct rate that is left.
func (r Rates) Ratio() float64 {
	if r.Direct == 0 {
		return 0
	}
	return r.Service / r.Direct
}

// Pair is the cost of new connections by one protocol.
type Pair struct {
	PerSecond Rates   `json:"perSecond"` // as many loops as processors
	Service   Latency `json:"service"`   // one loop
	Direct    Latency `json:"direct"`
	Made      int     `json:"made"` // all connections that were answered
	Failed    int     `json:"failed,omitempty"`
	Error     string  `json:"error,omitempty"` // of the first that failed
}

// Latency is of a new connection and one short answer.
type Latency struct {
	P50 Seconds `json:"p50"`
	P99 Seconds `json:"p99"`
}
