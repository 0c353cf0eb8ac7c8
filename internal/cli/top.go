package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sluice/internal/statusapi"
)

// TopOptions are the options of the top command.
type TopOptions struct {
	Namespace string
	Endpoints bool // show endpoints instead of service ports
	SortBy    string
	Period    time.Duration // from one reading of the counters to the next
}

// TopColumns are the values of --sort-by. Numbers are sorted in descending order.
var TopColumns = []string{"new", "active", "in", "out", "failed", "refused", "total", "name"}

// sample has the counters at one time.
type sample struct {
	at    time.Time
	ports map[string]statusapi.PortTraffic
	off   string // why nothing is counted; empty if traffic is counted
}

// Traffic reads all counters that a query selects. It returns all pages: lines are
// sorted by rates, which the daemon does not know.
type Traffic func(ctx context.Context, query url.Values) (*statusapi.TrafficList, error)

// TrafficOf returns a Traffic that reads the counters of a daemon.
func TrafficOf(c Client) Traffic {
	return func(ctx context.Context, query url.Values) (*statusapi.TrafficList, error) {
		var all statusapi.TrafficList
		err := statusapi.EachPage(ctx, query, func(ctx context.Context, query url.Values) (int, string, error) {
			var page statusapi.TrafficList
			err := c.Get(ctx, statusapi.TrafficPath, query, &page)
			all.Items = append(all.Items, page.Items...)
			all.Counted, all.Off = page.Counted, page.Off
			return len(page.Items), page.Continue, err
		})
		return &all, err
	}
}

// top writes the rates of every period until ctx ends, each over the last one and cut
// to the size of the screen. If size is nil, it writes the rates of one period only.
func top(ctx context.Context, w io.Writer, traffic Traffic, o TopOptions, size func() screen) error {
	before, err := read(ctx, traffic, o)
	if err != nil {
		return err
	}
	if before.off != "" {
		return fmt.Errorf("no traffic is counted: %s", before.off)
	}
	tick := time.NewTicker(o.Period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := read(ctx, traffic, o)
		if err != nil {
			return cmp.Or(ctx.Err(), err)
		}
		if !now.at.After(before.at) {
			continue // The counters were not read again since.
		}
		if size == nil {
			_, err := io.WriteString(w, topText(before, now, o, screen{}))
			return err
		}
		text := topText(before, now, o, size())
		// Lines are overwritten, because clearing the screen first would flicker.
		text = "\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J"
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
		before = now
	}
}

// read reads the counters.
func read(ctx context.Context, traffic Traffic, o TopOptions) (sample, error) {
	query := url.Values{}
	if o.Endpoints {
		query.Set("endpoints", "true")
	}
	if o.Namespace != "" {
		query.Set("namespace", o.Namespace)
	}
	list, err := traffic(ctx, query)
	if err != nil {
		return sample{}, err
	}
	s := sample{at: list.Counted, ports: map[string]statusapi.PortTraffic{}, off: list.Off}
	for _, p := range list.Items {
		if (p.Endpoint != "") == o.Endpoints {
			s.ports[strings.Join([]string{p.Namespace, p.Name, p.Port, p.Protocol, p.Endpoint}, "/")] = p
		}
	}
	return s, nil
}

// topLine has the counters and rates of one port or endpoint.
type topLine struct {
	statusapi.PortTraffic
	opened, in, out, failed, refused rate
}

// rate is the growth of a counter. It is not known if the counter is nil.
type rate struct {
	perSecond float64
	known     bool
}

func rateOf(before, now *uint64, elapsed time.Duration) rate {
	if now == nil || elapsed <= 0 {
		return rate{}
	}
	was := uint64(0)
	if before != nil && *before <= *now { // otherwise the counter was reset to zero
		was = *before
	}
	return rate{float64(*now-was) / elapsed.Seconds(), true}
}

func (r rate) String() string {
	switch {
	case !r.known:
		return "-"
	case r.perSecond > 0 && r.perSecond < 10:
		return fmt.Sprintf("%.1f", r.perSecond)
	default:
		return short(r.perSecond)
	}
}

// short formats a number with a unit prefix.
func short(n float64) string {
	for _, unit := range []string{"", "k", "M", "G", "T"} {
		if n < 10000 || unit == "T" {
			return fmt.Sprintf("%.0f%s", n, unit)
		}
		n /= 1000
	}
	return ""
}

func topLines(before, now sample) []topLine {
	var lines []topLine
	elapsed := now.at.Sub(before.at)
	for key, p := range now.ports {
		was := before.ports[key] // the zero value if it had no traffic yet
		refused, refusedBefore := total(p.Refused), total(was.Refused)
		lines = append(lines, topLine{
			PortTraffic: p,
			opened:      rateOf(was.Connections, p.Connections, elapsed),
			in:          rateOf(was.BytesIn, p.BytesIn, elapsed),
			out:         rateOf(was.BytesOut, p.BytesOut, elapsed),
			failed:      rateOf(was.Failed, p.Failed, elapsed),
			refused:     rateOf(&refusedBefore, &refused, elapsed),
		})
	}
	return lines
}

func total(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

func value(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

// compareTop returns a comparison of lines by a column, then by connections, then by
// name.
func compareTop(column string) func(a, b topLine) int {
	by := map[string]func(l *topLine) float64{
		"new":     func(l *topLine) float64 { return l.opened.perSecond },
		"active":  func(l *topLine) float64 { return float64(value(l.Active)) },
		"in":      func(l *topLine) float64 { return l.in.perSecond },
		"out":     func(l *topLine) float64 { return l.out.perSecond },
		"failed":  func(l *topLine) float64 { return l.failed.perSecond },
		"refused": func(l *topLine) float64 { return l.refused.perSecond },
		"total":   func(l *topLine) float64 { return float64(value(l.Connections)) },
		"name":    func(*topLine) float64 { return 0 },
	}[column]
	return func(a, b topLine) int {
		return cmp.Or(cmp.Compare(by(&b), by(&a)), cmp.Compare(value(b.Connections), value(a.Connections)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Endpoint, b.Endpoint))
	}
}

// topText returns the traffic between two samples as text. If it is too wide for the
// screen, names of Services are shortened first, because the numbers are to the right
// of them.
func topText(before, now sample, o TopOptions, size screen) string {
	lines := topLines(before, now)
	slices.SortFunc(lines, compareTop(o.SortBy))
	shown := lines
	if size.lines > 0 {
		shown = lines[:min(len(lines), max(1, size.lines-4))]
	}
	table := topTable(shown, o, 0)
	if excess := size.excess(table); excess > 0 {
		table = topTable(shown, o, excess)
	}
	title := fmt.Sprintf("%s with traffic, %s to %s; by %s\n", plural(len(lines), "line", "lines"), before.at.Format(time.TimeOnly), now.at.Format(time.TimeOnly), o.SortBy)
	rest := ""
	if more := len(lines) - len(shown); more > 0 {
		rest = fmt.Sprintf("and %s more\n", thousands(more))
	}
	return size.clip(title + table + rest)
}

// minName is the length that names are never shortened below.
const minName = 12

// topTable returns a table of lines, narrower by some columns if long names can be
// shortened.
func topTable(lines []topLine, o TopOptions, narrower int) string {
	longest := 0
	for _, l := range lines {
		longest = max(longest, utf8.RuneCountInString(l.Namespace+"/"+l.Name))
	}
	heads := []string{"SERVICE", "PORT", "NEW/S", "ACTIVE", "IN B/S", "OUT B/S", "REFUSED/S", "TOTAL"}
	failures := o.Endpoints || o.SortBy == "failed" // Rules refuse packets before there is an endpoint.
	if failures {
		heads[6] = "FAILED/S"
	}
	if o.Endpoints {
		heads = slices.Insert(heads, 2, "ENDPOINT")
	}
	var b strings.Builder
	t := newTable(&b, heads...)
	for _, l := range lines {
		cells := []string{
			shorten(l.Namespace+"/"+l.Name, max(minName, longest-narrower)), portName(l.Port, l.Protocol), l.opened.String(), count(l.Active),
			l.in.String(), l.out.String(), l.refused.String(), count(l.Connections),
		}
		if failures {
			cells[6] = l.failed.String()
		}
		if o.Endpoints {
			cells = slices.Insert(cells, 2, l.Endpoint)
		}
		t.line(cells...)
	}
	_ = t.Flush() // into memory
	return b.String()
}

func portName(name, protocol string) string {
	if name == "" {
		return protocol
	}
	return name + "/" + protocol
}
