// Package figures is what a comparison of service proxies found, as plain
// values: what was measured, what could not be and why, and whether the promises
// hold. It reads and writes them as JSON, and joins those of several runs.
//
// It measures nothing and draws nothing.
package figures

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Seconds is a length of time.
type Seconds float64

// SecondsOf returns a duration as seconds.
func SecondsOf(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// String returns the time with three digits and a unit that fits.
func (s Seconds) String() string {
	number := func(scale float64, decimals int) string {
		return strconv.FormatFloat(float64(s)*scale, 'f', decimals, 64)
	}
	switch abs := max(s, -s); {
	case abs == 0:
		return "0"
	case abs < 1e-3:
		return number(1e6, 0) + " µs"
	case abs < 0.1:
		return number(1e3, 2) + " ms"
	case abs < 1:
		return number(1e3, 0) + " ms"
	case abs < 100:
		return number(1, 1) + " s"
	default:
		return number(1, 0) + " s"
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

// Compare orders sizes by Services, and then by endpoints.
func (s Size) Compare(other Size) int {
	return cmp.Or(cmp.Compare(s.Services, other.Services), cmp.Compare(s.Endpoints, other.Endpoints))
}

// ParseSize is the reverse of String.
func ParseSize(text string) (Size, error) {
	services, endpoints, _ := strings.Cut(text, "x")
	n, err := strconv.Atoi(services)
	m, err2 := strconv.Atoi(endpoints)
	if err != nil || err2 != nil || n < 1 || m < 1 {
		return Size{}, fmt.Errorf("read size %q: want Services x endpoints, such as 1000x10", text)
	}
	return Size{n, m}, nil
}

// Figure is one number as tables, promises and pictures have it.
type Figure struct {
	Value float64 // 0: there is none
	Text  string  // with its unit, or why there is none
	More  bool    // the true value is larger
}

// String returns the number with its unit, or why there is none.
func (f Figure) String() string { return f.Text }

// figure returns a time, or with more a lower bound of it.
func (s Seconds) figure(more bool) Figure {
	if more {
		return Figure{float64(s), "> " + s.String(), true}
	}
	return Figure{Value: float64(s), Text: s.String()}
}

// Percentile returns the smallest sample that so many per cent are not above, 0
// if there are no samples.
func Percentile[T ~float64](samples []T, percent float64) T {
	if len(samples) == 0 {
		return 0
	}
	i := max(0, int(math.Ceil(float64(len(samples))*percent/100))-1)
	return slices.Sorted(slices.Values(samples))[i]
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

// SetMissing notes why a stage is not there.
func (r *Result) SetMissing(s Stage, why string) {
	if r.Missing == nil {
		r.Missing = map[Stage]string{}
	}
	r.Missing[s] = why
}

// notMeasured is the text of a figure that nobody asked for.
const notMeasured = "not measured"

// Why says why a stage is not there.
func (r *Result) Why(s Stage) string {
	if why, ok := r.Missing[s]; ok {
		return why
	}
	return notMeasured
}

// Change returns the changes that were made while so many others happened each second, or nil.
func (r *Result) Change(rate int) *Change {
	return find(r.Changes, func(c *Change) bool { return c.Rate == rate })
}

// find returns the first element that something is true of, or nil.
func find[T any](all []T, is func(*T) bool) *T {
	for i := range all {
		if is(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// ColdStart is a start on a kernel without rules.
type ColdStart struct {
	First    Seconds `json:"first,omitempty"` // until the first Service answered; 0: none did
	Most     Seconds `json:"most,omitempty"`  // until each of a hundred had that were chosen at random
	Every    Seconds `json:"every"`           // until every one had, or until nobody waited any more
	Answered int     `json:"answered"`        // Services that had by then
	Of       int     `json:"of"`
	CPU      Seconds `json:"cpu"` // of the process and its children
	Kernel   Bytes   `json:"kernelBytes"`
}

// EveryAnswered returns when every Service answered, or what that is more than.
func (c *ColdStart) EveryAnswered() Figure { return c.Every.figure(c.Answered < c.Of) }

// FirstAnswered returns when the first Service answered, or what that is more than.
func (c *ColdStart) FirstAnswered() Figure { return cmp.Or(c.First, c.Every).figure(c.First == 0) }

// Change is endpoints that were replaced one at a time, and how long after that
// traffic followed or, in a floor, the event came.
type Change struct {
	Rate     int       `json:"rate"`              // wanted of others, per second
	Achieved float64   `json:"achieved"`          // true rate of others
	Samples  []Seconds `json:"samples"`           // from the API server's answer, as they came; an event may come before it
	Calls    []Seconds `json:"calls"`             // of each sample: the update call itself, before that
	Waiting  Seconds   `json:"waiting,omitempty"` // how long the last one had taken when nobody waited any more
	Updates  int       `json:"updates"`           // all changes in the window, the samples included
	Window   Seconds   `json:"window,omitempty"`
	CPU      Seconds   `json:"cpu"` // of the process and its children in the window
}

// PerUpdate is the CPU time that one update cost.
func (c *Change) PerUpdate() Seconds { return c.CPU / Seconds(max(1, c.Updates)) }

// Percentile returns a percentile of the samples.
func (c *Change) Percentile(percent float64) Figure { return c.percentile(c.Samples, percent) }

// WithCall is Percentile with the update call, so from the moment that it was sent.
func (c *Change) WithCall(percent float64) Figure {
	return c.percentile(sums(c.Calls, c.Samples), percent)
}

// percentile counts the one that was waited for last if that took longer than all others did.
func (c *Change) percentile(samples []Seconds, percent float64) Figure {
	late := c.Waiting > 0 && (len(samples) == 0 || c.Waiting > slices.Max(samples))
	if late {
		samples = append(slices.Clone(samples), c.Waiting)
	}
	if len(samples) == 0 {
		return Figure{Text: "no sample"}
	}
	v := Percentile(samples, percent)
	return v.figure(late && v == c.Waiting)
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

// Percent is the part of one processor that it used.
func (i *Idle) Percent() float64 { return float64(i.CPU / i.Window * 100) }

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
	Ratio   float64 `json:"ratio"` // the part of the direct rate that is left
}

// NewRates returns the medians of rounds that were measured side by side.
func NewRates(service, direct []float64) Rates {
	var ratios []float64
	for i := range service {
		ratios = append(ratios, service[i]/direct[i])
	}
	return Rates{Percentile(service, 50), Percentile(direct, 50), Percentile(ratios, 50)}
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

// Asked is how many connections there were in all.
func (p Pair) Asked() int { return p.Made + p.Failed }

// Latency is of a new connection and one short answer.
type Latency struct {
	P50 Seconds `json:"p50"`
	P99 Seconds `json:"p99"`
}
