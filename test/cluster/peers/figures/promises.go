package figures

import (
	"cmp"
	"fmt"
)

// The peers that something was promised of.
const (
	ours         = "sluice/nftables"
	theirs       = "kube-proxy-1.37/nftables"
	oursLegacy   = "sluice/iptables"
	theirsLegacy = "kube-proxy-1.37/iptables"
)

// Verdict is whether a promise holds.
type Verdict string

// The verdicts.
const (
	Unknown Verdict = notMeasured // a figure is missing
	Holds   Verdict = "yes"
	Broken  Verdict = "**no**"
)

// Promise is a ratio that must hold, and the figures that it is made of.
type Promise struct {
	What          string
	Ours, Against Figure
	Ratio         string
	Target        string
	Verdict       Verdict
}

// target is what a ratio must be, beside a limit.
type target struct {
	text, ratio string // formats of the limit and of the ratio
	inverse     bool   // the ratio is theirs / ours; otherwise ours / theirs
	least       bool   // it must be at least the limit; otherwise at most
	part        bool   // the limit is one part of so many
}

var (
	faster  = target{"at least %gx faster", "%.1fx", true, true, false}
	oneIn   = target{"at most 1/%g", "%.3f", false, false, true}
	within  = target{"within %gx", "%.3f", false, false, false}
	atLeast = target{"at least %.2f", "%.2f", false, true, false}
)

// judge compares two figures. What is only known to be more than something
// counts as that if it is theirs, and moves the ratio to one side.
func (t target) judge(what string, limit float64, ours, against Figure) Promise {
	p := Promise{What: what, Ours: ours, Against: against, Target: fmt.Sprintf(t.text, limit), Ratio: "-", Verdict: Unknown}
	if ours.Value <= 0 || against.Value <= 0 || ours.More {
		return p
	}
	if t.part {
		limit = 1 / limit
	}
	ratio, sign := ours.Value/against.Value, "< "
	if t.inverse {
		ratio, sign = against.Value/ours.Value, "> "
	}
	if !against.More {
		sign = ""
	}
	p.Ratio, p.Verdict = sign+fmt.Sprintf(t.ratio, ratio), Broken
	if t.least && ratio >= limit || !t.least && ratio <= limit {
		p.Verdict = Holds
	}
	return p
}

// Promises judges everything that was promised.
func (r *Report) Promises() []Promise {
	big, tiny, few, many, legacy := Size{10_000, 10}, Size{10, 10}, Size{1000, 10}, Size{30_000, 4}, Size{2000, 10}
	const nft, ipt = "nftables, 10,000 x 10: ", "iptables, 2,000 x 10: "
	floor := cmp.Or(r.Floor(big), &Floor{})
	// Promises that compare the two programs, or ourselves at two sizes.
	programs := func(what string, t target, limit float64, m Metric) Promise {
		return t.judge(nft+what, limit, m(r.Result(ours, big)), m(r.Result(theirs, big)))
	}
	legacies := func(what string, t target, limit float64, m Metric) Promise {
		return t.judge(ipt+what, limit, m(r.Result(oursLegacy, legacy)), m(r.Result(theirsLegacy, legacy)))
	}
	sizes := func(what string, t target, limit float64, m Metric, large, small Size) Promise {
		return t.judge("nftables: "+what, limit, m(r.Result(ours, large)), m(r.Result(ours, small)))
	}
	const latency = "endpoint change to traffic, p50, "
	out := []Promise{
		programs(latency+"idle", faster, 50, ChangeLatency(0)),
		programs(latency+"under 50 changes/s", faster, 50, ChangeLatency(50)),
		programs("CPU per update, under 50 changes/s", oneIn, 20, ChangeCPU(50)),
		programs("cold start until every Service answers", oneIn, 10, ColdStartTime),
		programs("peak resident memory", oneIn, 3, PeakMemory),
		sizes("the same latency at 30,000 as at 1,000 Services, p50, idle", within, 1.3, ChangeLatency(0), many, few),
		sizes("the same, under 50 changes/s", within, 1.3, ChangeLatency(50), many, few),
		within.judge(nft+latency+"idle, against the floor", 3, ChangeLatency(0)(r.Result(ours, big)), floor.Change(0)),
		within.judge(nft+"the same from the moment that the update was sent", 3, changeWithCall(0)(r.Result(ours, big)), floor.WithCall(0)),
		legacies(latency+"idle", faster, 5, ChangeLatency(0)),
		legacies(latency+"under 50 changes/s", faster, 5, ChangeLatency(50)),
		legacies("cold start until every Service answers", oneIn, 2, ColdStartTime),
	}
	for _, s := range r.Sizes() {
		if us, them := r.Result(ours, s), r.Result(theirs, s); us != nil && them != nil {
			what := fmt.Sprintf("nftables, %v: new TCP connections per second through a ClusterIP, as part of the direct rate", s)
			out = append(out, atLeast.judge(what, 0.95, connectionsRatio(us), connectionsRatio(them)))
		}
	}
	return append(out, sizes("the same, flat from 10 to 30,000 Services",
		atLeast, 0.9, connectionsRatio, many, tiny))
}

// Metric reads one figure of a result, which may be nil.
type Metric func(x *Result) Figure

// metric reads a figure of a stage, or why that is missing.
func metric[T any](stage Stage, part func(x *Result) *T, figure func(part *T) Figure) Metric {
	return func(x *Result) Figure {
		if x == nil {
			return Figure{Text: notMeasured}
		}
		if p := part(x); p != nil {
			return figure(p)
		}
		return Figure{Text: x.Why(stage)}
	}
}

func changeMetric(rate int, figure func(c *Change) Figure) Metric {
	return metric(StageChange(rate), func(x *Result) *Change { return x.Change(rate) }, figure)
}

// ChangeLatency is the median time from a change to traffic, under so many others.
func ChangeLatency(rate int) Metric {
	return changeMetric(rate, func(c *Change) Figure { return c.Percentile(50) })
}

func changeWithCall(rate int) Metric {
	return changeMetric(rate, func(c *Change) Figure { return c.WithCall(50) })
}

// ChangeCPU is the CPU time of one change, under so many others.
func ChangeCPU(rate int) Metric {
	return changeMetric(rate, func(c *Change) Figure { return c.PerUpdate().figure(false) })
}

// The figures of the other stages.
var (
	ColdStartTime = metric(StageColdStart, func(x *Result) *ColdStart { return x.ColdStart }, (*ColdStart).EveryAnswered)
	PeakMemory    = metric(StageMemory, func(x *Result) *Memory { return x.Memory }, func(m *Memory) Figure {
		return Figure{Value: float64(m.Peak), Text: m.Peak.String()}
	})
	Connections = dataPathMetric("%.0f/s", func(r Rates) float64 { return r.Service })

	connectionsRatio = dataPathMetric("%.2f", func(r Rates) float64 { return r.Ratio })
)

func dataPathMetric(format string, of func(Rates) float64) Metric {
	return metric(StageDataPath, func(x *Result) *DataPath { return x.DataPath }, func(d *DataPath) Figure {
		v := of(d.TCP.PerSecond)
		return Figure{Value: v, Text: fmt.Sprintf(format, v)}
	})
}
