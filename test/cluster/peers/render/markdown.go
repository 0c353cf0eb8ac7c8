package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice/test/cluster/peers/figures"
)

// Markdown returns the report as a page.
func Markdown(r *figures.Report) string {
	var p page
	p.line("# Side by side with kube-proxy")
	p.line("")
	p.header(r)
	p.promises(r)
	p.pictures()
	p.changes(r)
	p.starts(r)
	p.costs(r)
	p.dataPath(r)
	p.floors(r)
	p.method(r)
	return p.b.String()
}

// page is a page under construction.
type page struct{ b strings.Builder }

// line adds a line as it is.
func (p *page) line(text string) {
	p.b.WriteString(text)
	p.b.WriteByte('\n')
}

// linef adds a line with figures in it.
func (p *page) linef(format string, args ...any) { p.line(fmt.Sprintf(format, args...)) }

// heading begins a section.
func (p *page) heading(text string) {
	p.line("")
	p.linef("## %s", text)
	p.line("")
}

// columns begins a table; figures stand on the right.
func (p *page) columns(text, numbers []string) {
	p.row(slices.Concat(text, numbers)...)
	p.linef("|%s%s", strings.Repeat("---|", len(text)), strings.Repeat("--:|", len(numbers)))
}

func (p *page) row(cells ...string) {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	p.line("| " + strings.Join(cells, " | ") + " |")
}

func (p *page) header(r *figures.Report) {
	m := r.Machine
	p.linef("Written by `make bench-peers` on %s: Linux %s, %d CPUs (%s), %.0f GiB. The API server, etcd, the clients and",
		m.Date.Format("2006-01-02"), m.Kernel, m.CPUs, m.CPU, float64(m.Memory)/(1<<30))
	p.line("the proxy share these CPUs. A size is Services x endpoints of each.")
	p.line("")
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(m.Versions)) {
		versions = append(versions, name+" "+m.Versions[name])
	}
	p.linef("%s.", strings.Join(versions, ", "))
}

func (p *page) promises(r *figures.Report) {
	p.heading("What was promised")
	p.line("Where a target does not hold, [profile.md](profile.md) shows where the time goes.")
	p.line("")
	p.verdicts(r)
}

// verdicts is the table of all promises.
func (p *page) verdicts(r *figures.Report) {
	p.columns([]string{"what"}, []string{"sluice", "against", "ratio", "target", "holds"})
	for _, x := range r.Promises() {
		p.row(x.What, x.Ours, x.Against, x.Ratio, x.Target, x.Verdict.String())
	}
}

func (p *page) pictures() {
	p.line("")
	for _, x := range pictures() {
		p.linef("![%s](peers-%s.svg)", x.title, x.name)
	}
}

// each calls f for all results, by size and then by peer.
func each(r *figures.Report, f func(x *figures.Result)) {
	for _, s := range r.Sizes() {
		for _, peer := range r.Peers() {
			if x := r.Result(peer, s); x != nil {
				f(x)
			}
		}
	}
}

// rates are those of other changes that there are figures of.
func rates(r *figures.Report) []int {
	seen := map[int]bool{}
	for _, x := range r.Results {
		for _, c := range x.Changes {
			seen[c.Rate] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func (p *page) changes(r *figures.Report) {
	p.heading("Endpoint change to traffic")
	p.line("From the API server's answer to the update until a new connection through the ClusterIP reaches the new endpoint.")
	p.line("`> ` is a lower bound: traffic had not followed when the time for the stage was over. The last column is from the moment")
	p.line("that the update was sent.")
	p.line("")
	p.columns([]string{"size", "peer", "other changes"}, []string{"p50", "p90", "max", "samples", "p50 with the call"})
	each(r, func(x *figures.Result) {
		for _, rate := range rates(r) {
			c := x.Change(rate)
			if c == nil {
				p.row(x.Size.String(), x.Peer, others(rate, 0), x.Why(figures.StageChange(rate)), "-", "-", "0", "-")
				continue
			}
			p.row(x.Size.String(), x.Peer, others(rate, c.Achieved), c.Percentile(50).String(), c.Percentile(90).String(),
				c.Percentile(100).String(), fmt.Sprint(len(c.Samples)), c.Whole(50).String())
		}
	})
}

// others says how many other endpoints changed.
func others(rate int, achieved float64) string {
	switch {
	case rate == 0:
		return "none"
	case achieved == 0:
		return fmt.Sprintf("%d/s", rate)
	default:
		return fmt.Sprintf("%d/s (%.0f/s)", rate, achieved)
	}
}

func (p *page) starts(r *figures.Report) {
	p.heading("Start")
	p.line("Cold: on a kernel without rules, from the start of the process. Restart: killed and started again on the rules that")
	p.line("it had left; until it follows a change that was made in between. The kernel's memory is the growth of the whole")
	p.line("machine's, so it is approximate.")
	p.line("")
	p.columns([]string{"size", "peer"}, []string{
		"first Service answers", "every Service answers", "CPU", "kernel memory, about", "restart", "CPU", "connections failed",
	})
	each(r, func(x *figures.Result) {
		cells := []string{x.Size.String(), x.Peer}
		if c := x.ColdStart; c != nil {
			every := c.Done().String()
			if c.Done().More {
				every = fmt.Sprintf("not within %v (%d of %d)", c.Every, c.Answered, c.Of)
			}
			cells = append(cells, c.Begun().String(), every, c.CPU.String(), c.Kernel.String())
		} else {
			cells = append(cells, x.Why(figures.StageColdStart), "-", "-", "-")
		}
		if s := x.Restart; s != nil {
			cells = append(cells, s.Followed.String(), s.CPU.String(), fmt.Sprintf("%d of %d", s.Failed, s.Asked))
		} else {
			cells = append(cells, x.Why(figures.StageRestart), "-", "-")
		}
		p.row(cells...)
	})
}

func (p *page) costs(r *figures.Report) {
	p.heading("CPU and memory of the proxy")
	p.line("CPU time includes children. It is that of the whole window divided by all updates in it. Resident memory is the")
	p.line("process's own; the last column is the peak of the process or of its largest child, whichever is more.")
	p.line("")
	var columns []string
	for _, rate := range rates(r) {
		columns = append(columns, "CPU per update, others "+others(rate, 0))
	}
	columns = append(columns, "idle, of one CPU", "steady", "peak", "peak with children")
	p.columns([]string{"size", "peer"}, columns)
	each(r, func(x *figures.Result) {
		cells := []string{x.Size.String(), x.Peer}
		for _, rate := range rates(r) {
			cells = append(cells, perUpdate(x, rate))
		}
		if x.Idle != nil {
			cells = append(cells, fmt.Sprintf("%.2f %%", x.Idle.Share()*100))
		} else {
			cells = append(cells, x.Why(figures.StageIdle))
		}
		p.row(append(cells, memory(x)...)...)
	})
}

func perUpdate(x *figures.Result, rate int) string {
	c := x.Change(rate)
	if c == nil {
		return x.Why(figures.StageChange(rate))
	}
	return c.PerUpdate().String()
}

func memory(x *figures.Result) []string {
	m := x.Memory
	switch {
	case m == nil:
		return []string{x.Why(figures.StageMemory), "-", "-"}
	case m.Largest == 0:
		return []string{m.Steady.String(), m.Peak.String(), "not measured"}
	default:
		return []string{m.Steady.String(), m.Peak.String(), m.Largest.String()}
	}
}

// failed says how many connections failed, and why the first did.
func failed(p *figures.Pair) string {
	if p.Failed == 0 {
		return "0"
	}
	return fmt.Sprintf("%d of %d (%s)", p.Failed, p.Made+p.Failed, p.Error)
}

func (p *page) dataPath(r *figures.Report) {
	p.heading("New connections")
	p.line("Through a ClusterIP of ten endpoints, and directly to the same endpoints in turn, alternating in the same seconds.")
	p.line("A connection is opened, answered in four bytes and closed; by UDP it is a datagram from a new socket and its answer.")
	p.line("Direct connections pass the proxy's rules too, all of them in iptables mode; \"no rules\" is a node without a proxy.")
	p.line("")
	p.columns([]string{"size", "peer", "protocol"}, []string{
		"per second", "direct", "ratio", "p50", "direct", "p99", "direct", "failed",
	})
	each(r, func(x *figures.Result) {
		if x.DataPath == nil {
			p.row(x.Size.String(), x.Peer, "both", x.Why(figures.StageDataPath), "-", "-", "-", "-", "-", "-", "-")
			return
		}
		for _, y := range []struct {
			name string
			pair *figures.Pair
		}{{"TCP", &x.DataPath.TCP}, {"UDP", &x.DataPath.UDP}} {
			n := y.pair.PerSecond
			p.row(x.Size.String(), x.Peer, y.name, fmt.Sprintf("%.0f", n.Service), fmt.Sprintf("%.0f", n.Direct),
				fmt.Sprintf("%.2f", n.Ratio()), y.pair.Service.P50.String(), y.pair.Direct.P50.String(),
				y.pair.Service.P99.String(), y.pair.Direct.P99.String(), failed(y.pair))
		}
	})
	for i := range r.Floors {
		f := &r.Floors[i]
		if f.Missing != "" {
			p.row(f.Size.String(), "no rules", "both", f.Missing, "-", "-", "-", "-", "-", "-", "-")
			continue
		}
		for _, y := range []struct {
			name string
			bare figures.Bare
		}{{"TCP", f.TCP}, {"UDP", f.UDP}} {
			p.row(f.Size.String(), "no rules", y.name, "-", fmt.Sprintf("%.0f", y.bare.PerSecond), "-",
				"-", y.bare.P50.String(), "-", y.bare.P99.String(), "-")
		}
	}
	p.bulk(r)
}

func (p *page) bulk(r *figures.Report) {
	p.line("")
	p.columns([]string{"size", "peer"}, []string{"bulk TCP, Gbit/s", "direct", "ratio"})
	each(r, func(x *figures.Result) {
		if x.DataPath == nil {
			p.row(x.Size.String(), x.Peer, x.Why(figures.StageDataPath), "-", "-")
			return
		}
		const gigabit = 1e9 / 8
		b := x.DataPath.Bulk
		p.row(x.Size.String(), x.Peer, fmt.Sprintf("%.1f", b.Service/gigabit), fmt.Sprintf("%.1f", b.Direct/gigabit), fmt.Sprintf("%.2f", b.Ratio()))
	})
}
