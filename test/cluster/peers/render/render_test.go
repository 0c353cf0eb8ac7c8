package render

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/test/cluster/peers/figures"
)

// report has a peer with all figures and one with none.
func report() *figures.Report {
	r := &figures.Report{}
	r.SetMachine(figures.Machine{Date: time.Unix(0, 0).UTC(), Kernel: "6.18", CPUs: 2, Versions: map[string]string{"nft": "1.0.6"}})
	for _, s := range []figures.Size{{Services: 10, Endpoints: 10}, {Services: 1000, Endpoints: 10}} {
		r.AddResult(figures.Result{
			Peer: "sluice/nftables", Size: s,
			ColdStart: &figures.ColdStart{First: 0.1, Every: 0.2, Answered: 10, Of: 10},
			Changes:   []figures.Change{{Rate: 0, Samples: []figures.Seconds{0.001}, Calls: []figures.Seconds{0.002}, Updates: 1, CPU: 0.01}},
			Idle:      &figures.Idle{CPU: 0.01, Window: 10},
			Memory:    &figures.Memory{Steady: 40 << 20, Peak: 50 << 20},
			DataPath:  &figures.DataPath{TCP: figures.Pair{PerSecond: figures.NewRates([]float64{90}, []float64{100})}},
			Restart:   &figures.Restart{Followed: 0.3, Asked: 100},
		})
		x := figures.Result{Peer: "kube-proxy-1.37/iptables", Size: s, ColdStart: &figures.ColdStart{Every: 180, Answered: 3, Of: 10}}
		for _, stage := range []figures.Stage{
			figures.StageChange(0), figures.StageIdle, figures.StageMemory, figures.StageDataPath, figures.StageRestart,
		} {
			x.SetMissing(stage, "never ready")
		}
		r.AddResult(x)
		r.AddFloor(figures.Floor{Size: s, Connect: 0.0001, Watches: []figures.Change{
			{Rate: 0, Samples: []figures.Seconds{0.0001}, Calls: []figures.Seconds{0.001}},
		}})
	}
	return r
}

func TestMarkdown(t *testing.T) {
	page, err := Markdown(report())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Linux 6.18, 2 CPUs", "nft 1.0.6",
		"| 1000x10 | sluice/nftables | none | 1.00 ms | 1.00 ms | 1.00 ms | 1 | 3.00 ms |",
		"| 1000x10 | kube-proxy-1.37/iptables | none | never ready | - | - | 0 | - |",
		"| 10x10 | kube-proxy-1.37/iptables | > 180 s | not within 180 s (3 of 10) |",
		"| 0 of 100 |", "| 40 MiB | 50 MiB | not measured |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	columns := 0
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		n := strings.Count(line, "|")
		if columns != 0 && n != columns {
			t.Errorf("a row of another width: %s", line)
		}
		columns = n
		if strings.Contains(line, "|  |") {
			t.Errorf("a blank cell: %s", line)
		}
	}
}

// TestStoredPage makes the page of the repository of its figures: the two belong
// together, and nobody has edited one by hand.
func TestStoredPage(t *testing.T) {
	const stem = "../../../../docs/benchmarks/peers"
	r, err := figures.Read(stem + ".json")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(stem + ".md")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Markdown(r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("run go run ./peers --render %s.json (-stored +got):\n%s", stem, diff)
	}
}

// TestWrite writes everything, also of a report that has nothing.
func TestWrite(t *testing.T) {
	for name, r := range map[string]*figures.Report{"some": report(), "none": {}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := Write(r, filepath.Join(dir, "peers.json")); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{"peers.json", "peers.md", "peers-change.svg", "peers-change.png", "peers-memory.png"} {
				if s, err := os.Stat(filepath.Join(dir, file)); err != nil || s.Size() == 0 {
					t.Errorf("%s: %v", file, err)
				}
			}
		})
	}
}

func TestPromises(t *testing.T) {
	const page = "before\n" + promisesBegin + "stale\n" + promisesEnd + "after\n"
	got, err := withPromises(page, &figures.Report{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got, "before\n"+promisesBegin+"| what |") || !strings.HasSuffix(got, "|\n"+promisesEnd+"after\n") ||
		strings.Contains(got, "stale") {
		t.Errorf("the page became\n%s", got)
	}
	again, err := withPromises(got, &figures.Report{})
	if err != nil || again != got {
		t.Errorf("a second time it became\n%s, error %v", again, err)
	}
	if _, err := withPromises("nothing\n", &figures.Report{}); err == nil {
		t.Error("a page without a place was taken")
	}
}
