package figures

import "fmt"

// The peers and sizes that something was promised of.
const (
	ours         = "sluice/nftables"
	theirs       = "kube-proxy-1.37/nftables"
	oursLegacy   = "sluice/iptables"
	theirsLegacy = "kube-proxy-1.37/iptables"
)

// Verdict is whether a promise holds.
type Verdict uint8

// The verdicts.
const (
	Unknown Verdict = iota // a figure is missing
	Holds
	Broken
)

// String returns the verdict in a word.
func (v Verdict) String() string {
	switch v {
	case Unknown:
		return "not measured"
	case Holds:
		return "yes"
	case Broken:
		return "**no**"
	default:
		panic(fmt.Sprintf("unknown verdict %d", uint8(v)))
	}
}

// Promise is a ratio that must hold, and the figures that it is made of.
type Promise struct {
	What    string
	Ours    string
	Against string // and what that is
	Ratio   string
	Target  string
	Verdict Verdict
}

// rule is how a promise is judged. A figure that is only known to be more than
// something counts as that.
type rule struct {
	what   string
	target string
	faster bool // the ratio is theirs / ours and at least limit; otherwise ours / theirs and at most limit
	limit  float64
}

func (r rule) judge(ours, against quantity) Promise {
	p := Promise{What: r.what, Ours: ours.text, Against: against.text, Target: r.target}
	if ours.value <= 0 || against.value <= 0 || ours.more {
		p.Ratio = "-"
		return p
	}
	// What is only known to be more moves the ratio to one side.
	sign := ""
	if r.faster {
		ratio := against.value / ours.value
		if against.more {
			sign = "> "
		}
		p.Ratio = fmt.Sprintf("%s%.1fx", sign, ratio)
		p.Verdict = verdict(ratio >= r.limit)
		return p
	}
	ratio := ours.value / against.value
	if against.more {
		sign = "< "
	}
	p.Ratio = fmt.Sprintf("%s%.3f", sign, ratio)
	p.Verdict = verdict(ratio <= r.limit)
	return p
}

func verdict(holds bool) Verdict {
	if holds {
		return Holds
	}
	return Broken
}

// quantity is a figure with its text; its value is 0 if there is none.
type quantity struct {
	value float64
	text  string
	more  bool
}

// Promises judges everything that was promised.
func (r *Report) Promises() []Promise {
	big, few, many, legacy := Size{10_000, 10}, Size{1000, 10}, Size{30_000, 4}, Size{2000, 10}
	us, them := r.side(ours, big), r.side(theirs, big)
	old, older := r.side(oursLegacy, legacy), r.side(theirsLegacy, legacy)
	const nft = "nftables, 10,000 x 10: "
	const ipt = "iptables, 2,000 x 10: "
	out := []Promise{
		rule{nft + "endpoint change to traffic, p50, idle", "at least 50x faster", true, 50}.judge(us.change(0), them.change(0)),
		rule{nft + "endpoint change to traffic, p50, under 50 changes/s", "at least 50x faster", true, 50}.judge(us.change(50), them.change(50)),
		rule{nft + "CPU per update, under 50 changes/s", "at most 1/20", false, 1.0 / 20}.judge(us.perUpdate(50), them.perUpdate(50)),
		rule{nft + "cold start until every Service answers", "at most 1/10", false, 1.0 / 10}.judge(us.coldStart(), them.coldStart()),
		rule{nft + "peak resident memory", "at most 1/3", false, 1.0 / 3}.judge(us.peak(), them.peak()),
		rule{"nftables: the same latency at 30,000 as at 1,000 Services, p50, idle", "within 1.3x", false, 1.3}.judge(r.side(ours, many).change(0), r.side(ours, few).change(0)),
		rule{"nftables: the same, under 50 changes/s", "within 1.3x", false, 1.3}.judge(r.side(ours, many).change(50), r.side(ours, few).change(50)),
		rule{nft + "endpoint change to traffic, p50, idle, against the floor", "within 3x", false, 3}.judge(us.change(0), r.floor(big, (*Floor).Change)),
		rule{nft + "the same from the moment that the update was sent", "within 3x", false, 3}.judge(us.whole(0), r.floor(big, (*Floor).Whole)),
		rule{ipt + "endpoint change to traffic, p50, idle", "at least 5x faster", true, 5}.judge(old.change(0), older.change(0)),
		rule{ipt + "endpoint change to traffic, p50, under 50 changes/s", "at least 5x faster", true, 5}.judge(old.change(50), older.change(50)),
		rule{ipt + "cold start until every Service answers", "at most 1/2", false, 1.0 / 2}.judge(old.coldStart(), older.coldStart()),
	}
	return append(out, r.dataPathPromises()...)
}

// dataPathPromises judges connections per second.
func (r *Report) dataPathPromises() []Promise {
	var out []Promise
	for _, s := range r.Sizes() {
		us, them := r.Result(ours, s), r.Result(theirs, s)
		if us == nil || them == nil {
			continue
		}
		out = append(out, atLeast(
			fmt.Sprintf("nftables, %v: new TCP connections per second through a ClusterIP", s),
			0.95, rate(us, false), rate(them, false)))
	}
	few, many := Size{10, 10}, Size{30_000, 4}
	flat := atLeast("nftables: new TCP connections per second, as part of the direct rate, flat from 10 to 30,000 Services",
		0.9, rate(r.Result(ours, many), true), rate(r.Result(ours, few), true))
	return append(out, flat)
}

// atLeast judges ours / against, which must not be less than the limit.
func atLeast(what string, limit float64, ours, against quantity) Promise {
	p := Promise{What: what, Ours: ours.text, Against: against.text, Target: fmt.Sprintf("at least %.2f", limit), Ratio: "-"}
	if ours.value > 0 && against.value > 0 {
		ratio := ours.value / against.value
		p.Ratio, p.Verdict = fmt.Sprintf("%.2f", ratio), verdict(ratio >= limit)
	}
	return p
}

// rate is the connections per second, or their part of the direct rate.
func rate(x *Result, relative bool) quantity {
	switch {
	case x == nil:
		return quantity{text: "not measured"}
	case x.DataPath == nil:
		return quantity{text: x.Why(StageDataPath)}
	case relative:
		v := x.DataPath.TCP.PerSecond.Ratio()
		return quantity{value: v, text: fmt.Sprintf("%.2f", v)}
	default:
		v := x.DataPath.TCP.PerSecond.Service
		return quantity{value: v, text: fmt.Sprintf("%.0f/s", v)}
	}
}

// side is one of the two that are compared.
type side struct{ *Result }

func (r *Report) side(peer string, s Size) side { return side{r.Result(peer, s)} }

// of returns a figure of a stage if its result is there.
func (s side) of(stage Stage, figure func() (quantity, bool)) quantity {
	if s.Result == nil {
		return quantity{text: "not measured"}
	}
	if q, ok := figure(); ok {
		return q
	}
	return quantity{text: s.Why(stage)}
}

func (s side) change(rate int) quantity { return s.median(rate, (*Change).Percentile) }

// whole is change from the moment that the update was sent.
func (s side) whole(rate int) quantity { return s.median(rate, (*Change).Whole) }

func (s side) median(rate int, of func(c *Change, percent float64) Bound) quantity {
	return s.of(StageChange(rate), func() (quantity, bool) {
		c := s.Change(rate)
		if c == nil {
			return quantity{}, false
		}
		b := of(c, 50)
		return quantity{value: float64(b.Value), text: b.String(), more: b.More}, !b.None
	})
}

func (s side) perUpdate(rate int) quantity {
	return s.of(StageChange(rate), func() (quantity, bool) {
		c := s.Change(rate)
		if c == nil {
			return quantity{}, false
		}
		return quantity{value: float64(c.PerUpdate()), text: c.PerUpdate().String()}, true
	})
}

func (s side) coldStart() quantity {
	return s.of(StageColdStart, func() (quantity, bool) {
		if s.ColdStart == nil {
			return quantity{}, false
		}
		b := s.ColdStart.Done()
		return quantity{value: float64(b.Value), text: b.String(), more: b.More}, true
	})
}

func (s side) peak() quantity {
	return s.of(StageMemory, func() (quantity, bool) {
		if s.Memory == nil {
			return quantity{}, false
		}
		return quantity{value: float64(s.Memory.Peak), text: s.Memory.Peak.String()}, true
	})
}

// floor is the least that an idle change can take.
func (r *Report) floor(s Size, of func(f *Floor, rate int) (Seconds, bool)) quantity {
	if f := r.Floor(s); f != nil {
		if v, ok := of(f, 0); ok {
			return quantity{value: float64(v), text: v.String()}
		}
	}
	return quantity{text: "not measured"}
}
