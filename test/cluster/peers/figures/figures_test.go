package figures

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPercentile(t *testing.T) {
	ten := []Seconds{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	tests := []struct {
		name    string
		samples []Seconds
		waiting Seconds
		percent float64
		want    Figure
	}{
		{"nothing", nil, 0, 50, Figure{Text: "no sample"}},
		{"one", []Seconds{3}, 0, 90, Seconds(3).figure(false)},
		{"the middle of ten", ten, 0, 50, Seconds(5).figure(false)},
		{"nine of ten", ten, 0, 90, Seconds(9).figure(false)},
		{"all of ten", ten, 0, 100, Seconds(10).figure(false)},
		{"none finished", nil, 40, 50, Seconds(40).figure(true)},
		{"the last did not finish", []Seconds{1, 2}, 40, 100, Seconds(40).figure(true)},
		{"the middle of those", []Seconds{1, 2}, 40, 50, Seconds(2).figure(false)},
		{"an unfinished one that was short says nothing", []Seconds{23}, 7, 100, Seconds(23).figure(false)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Change{Samples: tt.samples, Waiting: tt.waiting}
			if got := c.Percentile(tt.percent); got != tt.want {
				t.Errorf("Percentile(%v): got %+v, want %+v", tt.percent, got, tt.want)
			}
		})
	}
}

func TestStrings(t *testing.T) {
	for want, got := range map[string]string{
		"0":             Seconds(0).String(),
		"5 µs":          Seconds(5e-6).String(),
		"-54 µs":        Seconds(-54e-6).String(),
		"1.48 ms":       Seconds(0.00148).String(),
		"612 ms":        Seconds(0.612).String(),
		"9.6 s":         Seconds(9.6).String(),
		"180 s":         Seconds(180).String(),
		"> 40.0 s":      Seconds(40).figure(true).String(),
		"no sample":     (&Change{}).Percentile(50).String(),
		"337 MiB":       Bytes(337 << 20).String(),
		"0 MiB":         Bytes(-1000).String(),
		"30000x4":       Size{30_000, 4}.String(),
		"changes at 0/": string(StageChange(0))[:13],
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	if got, err := ParseSize("1000x10"); err != nil || got != (Size{1000, 10}) {
		t.Errorf("ParseSize: got %v, %v", got, err)
	}
	for _, bad := range []string{"", "1000", "x10", "0x10", "10x0", "10x-1", "axb"} {
		if got, err := ParseSize(bad); err == nil {
			t.Errorf("ParseSize(%q): got %v, want an error", bad, got)
		}
	}
}

// TestMerge joins a second run with the figures of a first one.
func TestMerge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "peers.json")
	old, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	old.SetMachine(Machine{Kernel: "6.1", Versions: map[string]string{"a": "1", "b": "1"}})
	old.AddResult(Result{Peer: "a/x", Size: Size{10, 1}, Date: time.Unix(1, 0).UTC()})
	old.AddResult(Result{Peer: "b/x", Size: Size{10, 1}, Missing: map[Stage]string{StageIdle: "why"}})
	old.AddFloor(Floor{Size: Size{1000, 1}, Element: 1})
	if err := old.Write(path); err != nil {
		t.Fatal(err)
	}
	r, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(old, r); diff != "" {
		t.Errorf("what was written and read again (-want +got):\n%s", diff)
	}
	r.SetMachine(Machine{Kernel: "6.2", Versions: map[string]string{"a": "2"}})
	r.AddResult(Result{Peer: "a/x", Size: Size{10, 1}, Date: time.Unix(2, 0).UTC()})
	r.AddResult(Result{Peer: "a/x", Size: Size{5, 1}})
	r.AddFloor(Floor{Size: Size{1000, 1}, Element: 2})
	r.AddFloor(Floor{Size: Size{10, 1}})
	if got := r.Result("a/x", Size{10, 1}).Date.Unix(); got != 2 {
		t.Errorf("the result of the same peer and size is of second %d, want the later one", got)
	}
	if diff := cmp.Diff([]Size{{5, 1}, {10, 1}}, r.Sizes()); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
	if got := r.Floor(Size{1000, 1}).Element; got != 2 || len(r.Floors) != 2 {
		t.Errorf("got %d floors, the first with %v, want 2 with 2 s", len(r.Floors), got)
	}
	if diff := cmp.Diff(map[string]string{"a": "2", "b": "1"}, r.Machine.Versions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

func TestFloor(t *testing.T) {
	f := Floor{Element: 1, Connect: 2, List: 10, Write: 20, Sweep: 30, Watches: []Change{
		{Rate: 0, Samples: []Seconds{-1, -3, -2}, Calls: []Seconds{5, 5, 5}},
		{Rate: 50, Samples: []Seconds{4}, Calls: []Seconds{5}},
	}}
	tests := []struct {
		rate             int
		change, withCall Figure
	}{
		{0, Seconds(3).figure(false), Seconds(6).figure(false)}, // an event before the answer counts as zero
		{50, Seconds(7).figure(false), Seconds(12).figure(false)},
		{200, Figure{Text: "not measured"}, Figure{Text: "not measured"}},
	}
	for _, tt := range tests {
		if got := f.Change(tt.rate); got != tt.change {
			t.Errorf("Change(%d): got %+v, want %+v", tt.rate, got, tt.change)
		}
		if got := f.WithCall(tt.rate); got != tt.withCall {
			t.Errorf("WithCall(%d): got %+v, want %+v", tt.rate, got, tt.withCall)
		}
	}
	if got := f.ColdStart(); got != 60 {
		t.Errorf("ColdStart: got %v, want 60 s", got)
	}
}
