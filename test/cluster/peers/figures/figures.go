// Package figures contains the results of a comparison of service proxies as plain values: what was
// measured, what could not be measured and why, and whether the promises hold. It reads and writes
// them as JSON, and merges several runs.
//
// It neither measures nor renders.
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

// Size is the size of a cluster.
type Size struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"` // of each Service
}

// String returns the size as in flags and tables, such as 1000x10.
func (s Size) String() string { return fmt.Sprintf("%dx%d", s.Services, s.Endpoints) }

// Compare orders sizes by Services, and then by endpoints.
func (s Size) Compare(other Size) int {
	return cmp.Or(cmp.Compare(s.Services, other.Services), cmp.Compare(s.Endpoints, other.Endpoints))
}

// ParseSize is the inverse of String.
func ParseSize(text string) (Size, error) {
	services, endpoints, _ := strings.Cut(text, "x")
	n, err := strconv.Atoi(services)
	m, err2 := strconv.Atoi(endpoints)
	if err != nil || err2 != nil || n < 1 || m < 1 {
		return Size{}, fmt.Errorf("read size %q: want Services x endpoints, such as 1000x10", text)
	}
	return Size{n, m}, nil
}

// Figure is one number of a table, promise or picture.
type Figure struct {
	Value float64 // 0 means none
	Text  string  // the number with its unit, or why there is none
	More  bool    // the true value is larger
}

// String returns the number with its unit, or why there is none.
func (f Figure) String() string { return f.Text }

// figure returns the time as a Figure; more means that it is a lower bound.
func (s Seconds) figure(more bool) Figure {
	if more {
		return Figure{float64(s), "> " + s.String(), true}
	}
	return Figure{Value: float64(s), Text: s.String()}
}

// Percentile returns the smallest sample that is not below so many per cent of the samples, or 0 if
// there are none.
func Percentile[T ~float64](samples []T, percent float64) T {
	if len(samples) == 0 {
		return 0
	}
	i := max(0, int(math.Ceil(float64(len(samples))*percent/100))-1)
	return slices.Sorted(slices.Values(samples))[i]
}

// Report is all results.
type Report struct {
	Machine  Machine   `json:"machine"` // of the latest run
	Settings []Setting `json:"settings"`
	Floors   []Floor   `json:"floors"`
	Results  []Result  `json:"results"`
}

// Machine describes where the results were measured.
type Machine struct {
	Date     time.Time         `json:"date"`
	Kernel   string            `json:"kernel"`
	CPU      string            `json:"cpu"`
	CPUs     int               `json:"cpus"`
	Memory   Bytes             `json:"memoryBytes"`
	Versions map[string]string `json:"versions"` // of programs, by name
}

// Setting is a setting of the run, such as how long a stage may take.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Result is the result of one peer at one size.
type Result struct {
	Peer string    `json:"peer"` // program/mode
	Size Size      `json:"size"`
	Date time.Time `json:"date"`
	Took Seconds   `json:"took"` // in total

	ColdStart *ColdStart `json:"coldStart,omitempty"`
	Changes   []Change   `json:"changes,omitempty"`
	Idle      *Idle      `json:"idle,omitempty"`
	Memory    *Memory    `json:"memory,omitempty"`
	DataPath  *DataPath  `json:"dataPath,omitempty"`
	Restart   *Restart   `json:"restart,omitempty"`

	// Missing says why a stage has no result.
	Missing map[Stage]string `json:"missing,omitempty"`
}

// Stage is the name of a measurement.
type Stage string

// The stages, besides those of StageChange.
const (
	StageColdStart Stage = "cold start"
	StageIdle      Stage = "idle"
	StageMemory    Stage = "memory"
	StageDataPath  Stage = "data path"
	StageRestart   Stage = "restart"
)

// StageChange returns the stage of changes during so many other changes per second.
func StageChange(rate int) Stage { return Stage(fmt.Sprintf("changes at %d/s", rate)) }

// SetMissing records why a stage has no result.
func (r *Result) SetMissing(s Stage, why string) {
	if r.Missing == nil {
		r.Missing = map[Stage]string{}
	}
	r.Missing[s] = why
}

// notMeasured is the text of a figure that was not requested.
const notMeasured = "not measured"

// Why returns why a stage has no result.
func (r *Result) Why(s Stage) string {
	if why, ok := r.Missing[s]; ok {
		return why
	}
	return notMeasured
}

// Change returns the changes made during so many other changes per second, or nil.
func (r *Result) Change(rate int) *Change {
	return find(r.Changes, func(c *Change) bool { return c.Rate == rate })
}

// find returns the first matching element, or nil.
func find[T any](all []T, is func(*T) bool) *T {
	for i := range all {
		if is(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// ColdStart is a start on a node without rules.
type ColdStart struct {
	First    Seconds `json:"first,omitempty"` // until the first Service answered; 0 means none did
	Most     Seconds `json:"most,omitempty"`  // until a hundred random Services had answered
	Every    Seconds `json:"every"`           // until every Service had answered, or the timeout
	Answered int     `json:"answered"`        // Services that had answered by then
	Of       int     `json:"of"`
	CPU      Seconds `json:"cpu"` // of the process and its children
	Kernel   Bytes   `json:"kernelBytes"`
}

// EveryAnswered returns when every Service had answered, or a lower bound.
func (c *ColdStart) EveryAnswered() Figure { return c.Every.figure(c.Answered < c.Of) }

// FirstAnswered returns when the first Service answered, or a lower bound.
func (c *ColdStart) FirstAnswered() Figure { return cmp.Or(c.First, c.Every).figure(c.First == 0) }

// Change is a series of endpoints replaced one at a time, and how long afterwards traffic followed
// or, in a Floor, the event arrived.
type Change struct {
	Rate     int       `json:"rate"`              // wanted other changes per second
	Achieved float64   `json:"achieved"`          // actual other changes per second
	Samples  []Seconds `json:"samples"`           // since the API server's answer, in order; an event may arrive before it
	Calls    []Seconds `json:"calls"`             // duration of each sample's update call
	Waiting  Seconds   `json:"waiting,omitempty"` // how long the last one had taken at the timeout
	Updates  int       `json:"updates"`           // all changes in the window, including samples
	Window   Seconds   `json:"window,omitempty"`
	CPU      Seconds   `json:"cpu"` // of the process and its children in the window
}

// PerUpdate returns the CPU time per update.
func (c *Change) PerUpdate() Seconds { return c.CPU / Seconds(max(1, c.Updates)) }

// Percentile returns a percentile of the samples.
func (c *Change) Percentile(percent float64) Figure { return c.percentile(c.Samples, percent) }

// WithCall is Percentile including the update call, that is, since it was sent.
func (c *Change) WithCall(percent float64) Figure {
	return c.percentile(sums(c.Calls, c.Samples), percent)
}

// percentile includes the change that was waited for last, if it took longer than all others.
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

// sums adds two lists element by element, up to the shorter length.
func sums(a, b []Seconds) []Seconds {
	var out []Seconds
	for i := range min(len(a), len(b)) {
		out = append(out, a[i]+b[i])
	}
	return out
}

// Idle is a proxy while nothing changes.
type Idle struct {
	CPU    Seconds `json:"cpu"`
	Window Seconds `json:"window"`
}

// Percent returns the share of one processor that it used.
func (i *Idle) Percent() float64 { return float64(i.CPU / i.Window * 100) }

// Memory is the memory of a proxy.
type Memory struct {
	Steady Bytes `json:"steady"` // after all changes
	Peak   Bytes `json:"peak"`
	// Largest is the peak of the process or of any of its children.
	Largest Bytes `json:"largest,omitempty"`
}

// Restart is a start on a node whose rules are correct except for one change, which was made while
// no proxy was running.
type Restart struct {
	Followed Seconds `json:"followed"` // from the start until traffic followed the change
	CPU      Seconds `json:"cpu"`      // of the process and its children until then
	Asked    int     `json:"asked"`    // connections since the end of the old process
	Failed   int     `json:"failed"`
	Error    string  `json:"error,omitempty"` // of the first that failed
}

// DataPath is the cost of connections, through a ClusterIP and direct.
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
	Ratio   float64 `json:"ratio"` // Service / Direct, median by round
}

// NewRates returns the medians of alternate rounds.
func NewRates(service, direct []float64) Rates {
	var ratios []float64
	for i := range service {
		ratios = append(ratios, service[i]/direct[i])
	}
	return Rates{Percentile(service, 50), Percentile(direct, 50), Percentile(ratios, 50)}
}

// Pair is the cost of new connections of one protocol.
type Pair struct {
	PerSecond Rates   `json:"perSecond"` // as many loops as processors
	Service   Latency `json:"service"`   // one loop
	Direct    Latency `json:"direct"`
	Made      int     `json:"made"` // answered connections
	Failed    int     `json:"failed,omitempty"`
	Error     string  `json:"error,omitempty"` // of the first that failed
}

// Asked returns the total number of connections.
func (p Pair) Asked() int { return p.Made + p.Failed }

// Latency is the time of a new connection with one short answer.
type Latency struct {
	P50 Seconds `json:"p50"`
	P99 Seconds `json:"p99"`
}
