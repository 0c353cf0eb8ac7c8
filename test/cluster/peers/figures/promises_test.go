package figures

import (
	"strings"
	"testing"
)

// sample is a result with one figure of everything that is judged.
func sample(peer string, s Size, latency Seconds) Result {
	return Result{
		Peer: peer, Size: s,
		ColdStart: &ColdStart{Every: latency, Answered: 1, Of: 1},
		Changes: []Change{
			{Rate: 0, Samples: []Seconds{latency}, Calls: []Seconds{0}, Updates: 1, CPU: latency},
			{Rate: 50, Samples: []Seconds{latency}, Calls: []Seconds{0}, Updates: 1, CPU: latency},
		},
		Memory:   &Memory{Peak: Bytes(latency)},
		DataPath: &DataPath{TCP: Pair{PerSecond: NewRates([]float64{100}, []float64{100})}},
	}
}

// full is a report in which everything holds, by far.
func full() *Report {
	r := &Report{}
	for _, s := range []Size{{10, 10}, {1000, 10}, {10_000, 10}, {30_000, 4}} {
		r.AddResult(sample(ours, s, 1))
		r.AddResult(sample(theirs, s, 1000))
	}
	r.AddResult(sample(oursLegacy, Size{2000, 10}, 1))
	r.AddResult(sample(theirsLegacy, Size{2000, 10}, 1000))
	r.AddFloor(Floor{Size: Size{10_000, 10}, Connect: 1, Watches: []Change{{Rate: 0, Samples: []Seconds{0}, Calls: []Seconds{0}}}})
	return r
}

func TestPromises(t *testing.T) {
	big, few, many := Size{10_000, 10}, Size{1000, 10}, Size{30_000, 4}
	tests := []struct {
		name   string
		change func(r *Report)
		broken string // part of what is broken; empty: nothing
		ratio  string
	}{
		{"all holds", func(*Report) {}, "", ""},
		{"too slow idle", func(r *Report) { r.Result(theirs, big).Changes[0].Samples[0] = 49 }, "p50, idle", "49.0x"},
		{"too slow under churn", func(r *Report) { r.Result(theirs, big).Changes[1].Samples[0] = 49 }, "under 50 changes/s", "49.0x"},
		{"too much CPU", func(r *Report) { r.Result(ours, big).Changes[1].CPU = 51 }, "CPU per update", "0.051"},
		{"too slow a start", func(r *Report) { r.Result(ours, big).ColdStart.Every = 101 }, "cold start", "0.101"},
		{"too much memory", func(r *Report) { r.Result(ours, big).Memory.Peak = 400 }, "memory", "0.400"},
		{"growth", func(r *Report) { r.Result(ours, many).Changes[0].Samples[0] = 1.4 }, "at 30,000 as at 1,000", "1.400"},
		{"far from the floor", func(r *Report) { r.Floor(big).Connect = 0.3 }, "against the floor", "3.333"},
		{"connections", func(r *Report) { r.Result(theirs, few).DataPath.TCP.PerSecond.Ratio = 1.1 }, "1000x10: new TCP", "0.91"},
		{"connections, growth", func(r *Report) {
			r.Result(ours, many).DataPath.TCP.PerSecond = NewRates([]float64{100}, []float64{120})
			r.Result(theirs, many).DataPath.TCP.PerSecond = NewRates([]float64{100}, []float64{120})
		}, "flat", "0.83"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := full()
			tt.change(r)
			var found bool
			for _, p := range r.Promises() {
				switch {
				case p.Verdict == Unknown:
					t.Errorf("%s: not measured", p.What)
				case tt.broken != "" && p.Verdict == Broken && strings.Contains(p.What, tt.broken):
					found = true
					if p.Ratio != tt.ratio {
						t.Errorf("%s: got ratio %s, want %s", p.What, p.Ratio, tt.ratio)
					}
				case p.Verdict == Broken && tt.broken != "against the floor":
					t.Errorf("%s: broken, by %s", p.What, p.Ratio)
				}
			}
			if found != (tt.broken != "") {
				t.Errorf("broken %q: found %v", tt.broken, found)
			}
		})
	}
}

// TestPromisesOfLittle judges nothing that was not measured, and says why.
func TestPromisesOfLittle(t *testing.T) {
	r := full()
	x := Result{Peer: theirs, Size: Size{10_000, 10}}
	x.SetMissing(StageChange(0), "it crashed")
	r.AddResult(x)
	p := r.Promises()[0]
	if p.Verdict != Unknown || p.Against.Text != "it crashed" {
		t.Errorf("got %v against %q, want it not measured, with the reason", p.Verdict, p.Against)
	}
	for _, p := range (&Report{}).Promises() {
		if p.Verdict != Unknown || p.Ratio != "-" {
			t.Errorf("%s: got %v, %s of nothing", p.What, p.Verdict, p.Ratio)
		}
	}
}

// TestLowerBounds uses what a peer did not achieve in time as the least that it
// needs, but never for ourselves.
func TestLowerBounds(t *testing.T) {
	big := Size{10_000, 10}
	r := full()
	r.Result(theirs, big).ColdStart = &ColdStart{Every: 180, Answered: 5, Of: 10}
	r.Result(theirs, big).Changes[0] = Change{Rate: 0, Waiting: 60}
	all := r.Promises()
	if p := all[0]; p.Ratio != "> 60.0x" || p.Verdict != Holds {
		t.Errorf("%s: got %s, %v", p.What, p.Ratio, p.Verdict)
	}
	if p := all[3]; p.Ratio != "< 0.006" || p.Verdict != Holds {
		t.Errorf("%s: got %s, %v", p.What, p.Ratio, p.Verdict)
	}
	r.Result(ours, big).ColdStart = &ColdStart{Every: 180, Answered: 5, Of: 10}
	if p := r.Promises()[3]; p.Verdict != Unknown {
		t.Errorf("%s: got %v though ours did not finish", p.What, p.Verdict)
	}
}
