package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/internal/statusapi"
)

// Client sends requests to a daemon, as [statusapi.Client] does.
type Client interface {
	Get(ctx context.Context, path string, query url.Values, to any) error
}

const (
	// maxServices is how many Services are shown by default. If there are more, only
	// those that need attention are shown.
	maxServices = 50

	// maxProblems is how many problems are shown. Whoever writes objects decides how
	// many there are.
	maxProblems = 20

	// maxDoubts is how many doubts are shown.
	maxDoubts = 20

	// watchPeriod is how often --watch asks for changes.
	watchPeriod = time.Second
)

// StatusOptions are the options of the status command.
type StatusOptions struct {
	Services  []string // NAMESPACE/NAME, or NAME in Namespace; empty: all
	Namespace string
	All       bool // show all Services, or nodes, however many there are
	Endpoints bool // request all endpoints of named Services, instead of the first page
	Problems  bool // show only what needs attention
	SortBy    string
	Output    string // one of StatusFormats, or empty for text

	Wait  *time.Duration // how long to wait first until everything is in force; nil: do not wait
	Watch bool           // continue, and show what changes

	columns int // of the terminal that text must fit; 0: unlimited
}

// StatusFormats are the values of --output.
var StatusFormats = []string{"wide", "json", "yaml", "name"}

// StatusReport is everything that the status command shows. It is also its JSON and
// YAML output.
type StatusReport struct {
	Node     statusapi.Node             `json:"node"`
	Problems []statusapi.Problem        `json:"problems"`
	Services []statusapi.ServiceSummary `json:"services"`
	Details  []statusapi.Service        `json:"details,omitempty"` // of named Services

	problemCount int  // including problems that are not in Problems
	some         bool // only some Services were asked for
}

// Troubled reports whether anything needs attention: of all Services, or of those that
// were asked for. What keeps the whole node from working counts in any case.
func (r *StatusReport) Troubled() bool {
	node := r.Node
	node.Counts.Problems, node.Counts.Unreachable = 0, 0 // r has those of the namespace, or of the named Services
	if r.some {
		node.Counts.Pending, node.Counts.Refused = 0, 0 // also of other Services, as is the doubt
		node.Doubts = slices.DeleteFunc(slices.Clone(node.Doubts), func(d statusapi.Doubt) bool { return d.Kind == "ServicePortsRefused" })
	}
	return node.Troubled() || r.problemCount > 0 ||
		slices.ContainsFunc(r.Services, func(s statusapi.ServiceSummary) bool { return s.Troubled() })
}

// Status requests the status and writes it to w.
func Status(ctx context.Context, w io.Writer, c Client, o StatusOptions) (*StatusReport, error) {
	r, err := Report(ctx, c, o)
	if err != nil {
		return nil, err
	}
	return r, writeFitted(w, o.columns, func(w io.Writer) error { return writeReport(w, r, o) })
}

// fitTerminal makes text fit the terminal that w writes to, if it is one. What a program
// reads is not cut, nor is what -o asks for.
func (o *StatusOptions) fitTerminal(w io.Writer) {
	if width, _, err := Terminal(w); err == nil && o.Output == "" {
		o.columns = width
	}
}

func writeReport(w io.Writer, r *StatusReport, o StatusOptions) error {
	switch o.Output {
	case "json", "yaml":
		return encode(w, o.Output, r)
	case "name":
		for _, s := range r.Services {
			fmt.Fprintln(w, Clean(s.Namespace+"/"+s.Name))
		}
		return nil
	}
	writeNode(w, &r.Node)
	writeDoubts(w, &r.Node)
	writeProblems(w, r)
	if len(o.Services) > 0 {
		return writeDetails(w, r, o)
	}
	return writeServices(w, r, o)
}

// Report requests everything that the options want shown.
func Report(ctx context.Context, c Client, o StatusOptions) (*StatusReport, error) {
	r := &StatusReport{Problems: []statusapi.Problem{}, Services: []statusapi.ServiceSummary{}, some: !o.ofAll()} // not null in JSON
	if err := c.Get(ctx, statusapi.NodePath, nil, &r.Node); err != nil {
		return nil, err
	}
	if len(o.Services) > 0 {
		return r, addDetails(ctx, c, o, r)
	}
	query := url.Values{}
	if o.Namespace != "" {
		query.Set("namespace", o.Namespace)
	}
	var problems statusapi.ProblemList
	if err := c.Get(ctx, statusapi.ProblemsPath, query, &problems); err != nil {
		return nil, err
	}
	r.Problems, r.problemCount = append(r.Problems, problems.Items...), problems.Total
	query.Set("sort", cmp.Or(o.SortBy, "name"))
	all := o.All || o.Namespace != "" || o.Output != ""
	if o.Problems || !all && r.Node.Counts.Services > maxServices {
		query.Set("problems", "true")
	}
	return r, addServices(ctx, c, query, all || o.Problems, r)
}

// addServices requests all Services that match, or the first maxServices, and adds
// them to the report.
func addServices(ctx context.Context, c Client, query url.Values, all bool, r *StatusReport) error {
	get := func(ctx context.Context, query url.Values) (int, string, error) {
		var page statusapi.ServiceList
		err := c.Get(ctx, statusapi.ServicesPath, query, &page)
		r.Services = append(r.Services, page.Items...)
		return len(page.Items), page.Continue, err
	}
	if all {
		return statusapi.EachPage(ctx, query, get)
	}
	query.Set("limit", strconv.Itoa(maxServices))
	_, _, err := get(ctx, query)
	return err
}

// addDetails requests the named Services and adds them to the report.
func addDetails(ctx context.Context, c Client, o StatusOptions, r *StatusReport) error {
	for _, name := range o.Services {
		namespace, name, err := SplitName(name, o.Namespace)
		if err != nil {
			return err
		}
		s, err := getService(ctx, c, statusapi.ServicePath(namespace, name), o.Endpoints)
		if err != nil {
			return err
		}
		r.Details, r.Services = append(r.Details, s), append(r.Services, s.ServiceSummary)
		r.Problems, r.problemCount = append(r.Problems, s.Found...), r.problemCount+len(s.Found)
	}
	return nil
}

// ofAll reports whether the options select all Services.
func (o *StatusOptions) ofAll() bool { return len(o.Services) == 0 && o.Namespace == "" }

// wants reports whether the options select a Service.
func (o *StatusOptions) wants(namespace, name string) bool {
	if len(o.Services) == 0 {
		return o.Namespace == "" || o.Namespace == namespace
	}
	return slices.ContainsFunc(o.Services, func(text string) bool {
		ns, n, err := SplitName(text, o.Namespace)
		return err == nil && ns == namespace && n == name
	})
}

// SplitName parses NAMESPACE/NAME, or NAME in a default namespace.
func SplitName(text, namespace string) (string, string, error) {
	ns, name, found := strings.Cut(text, "/")
	if !found {
		ns, name = namespace, text
	}
	if ns == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%q: want NAMESPACE/NAME, or NAME with -n NAMESPACE", text)
	}
	return ns, name, nil
}

// writeNode writes the first lines of the status: the node, and whether everything is
// in force.
func writeNode(w io.Writer, n *statusapi.Node) {
	health := "healthy"
	if !n.Health.Healthy {
		health = "NOT HEALTHY: " + n.Health.Reason
	}
	fmt.Fprintf(w, "%s: mode %s, %s, up %s, %s\n", Clean(n.Name), Clean(n.Mode), Clean(strings.Join(n.Families, " and ")), age(n.Now, n.Started), Clean(health))
	fmt.Fprintf(w, "%s, %s, %s\n", plural(n.Counts.Services, "Service", "Services"), plural(n.Counts.Ports, "port", "ports"),
		plural(n.Counts.Endpoints, "endpoint", "endpoints"))
	fmt.Fprintln(w, Clean(verdictLine(n)))
	if t := n.Tracking; t != nil && t.Limit > 0 {
		fmt.Fprintf(w, "Connection tracking: %s of %s entries (%d%%)\n", thousands(t.Entries), thousands(t.Limit), t.Entries*100/t.Limit)
	}
}

// verdictLine returns the verdict on the node, and when the last sync was.
func verdictLine(n *statusapi.Node) string {
	line := n.Judge().Text
	if n.Sync.Done && n.Sync.Last != nil {
		line += fmt.Sprintf(" (last sync %s ago, took %s)", age(n.Now, *n.Sync.Last), seconds(n.Sync.Seconds))
	}
	return line
}

// writeDoubts writes the first maxDoubts doubts: a daemon on another host decides how
// many there are.
func writeDoubts(w io.Writer, n *statusapi.Node) {
	if len(n.Doubts) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", strings.ToUpper(plural(len(n.Doubts), "doubt", "doubts")))
	for _, d := range n.Doubts[:min(len(n.Doubts), maxDoubts)] {
		fmt.Fprintf(w, "  %s\n", Clean(doubtLine(&d, n.Now)))
	}
}

// doubtLine returns a doubt in a line: what it is about, since when, why, and what
// happens next and when.
func doubtLine(d *statusapi.Doubt, now time.Time) string {
	line := d.Kind
	if d.Object != "" {
		line += " " + d.Object
	}
	line += fmt.Sprintf(", since %s: %s", age(now, d.Since), d.Reason)
	if d.Next != "" {
		line += ". Next: " + d.Next
	}
	if d.NextAt != nil {
		line += ", in " + age(*d.NextAt, now)
	}
	return line
}

func writeProblems(w io.Writer, r *StatusReport) {
	if r.problemCount == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", strings.ToUpper(plural(r.problemCount, "problem", "problems")))
	some := r.Problems[:min(len(r.Problems), maxProblems)]
	for _, p := range some {
		fmt.Fprintf(w, "  %s\n", Clean(p.String()))
	}
	if more := r.problemCount - len(some); more > 0 {
		fmt.Fprintf(w, "  and %s more (-o json has up to %d)\n", thousands(more), statusapi.DefaultPage)
	}
}

// serviceHeads returns the headings of a list of Services.
func serviceHeads(wide bool) []string {
	heads := []string{"NAMESPACE", "NAME", "ADDRESS", "PORTS", "ENDPOINTS", "STATE", "SINCE"}
	if wide {
		heads = append(heads, "EXTERNAL", "CONNECTIONS", "ACTIVE", "FAILED", "REFUSED", "BYTES", "REASON")
	}
	return heads
}

// serviceLine returns the cells of a Service in a list of Services.
func serviceLine(s *statusapi.ServiceSummary, now time.Time, wide bool) []string {
	cells := []string{s.Namespace, s.Name, s.Address, strings.Join(s.Ports, ","), fmt.Sprintf("%d/%d", s.Used, s.Endpoints), stateWord(s), age(now, s.Since)}
	if wide {
		t := cmp.Or(s.Traffic, &statusapi.Traffic{})
		cells = append(cells, strings.Join(s.External, ","), count(t.Connections), count(t.Active), count(t.Failed), refusedPackets(s.Traffic),
			count(sum(t.BytesIn, t.BytesOut)), s.Reason)
	}
	return cells
}

// stateWord returns the worst that is known of a Service.
func stateWord(s *statusapi.ServiceSummary) string {
	state := string(s.State)
	if s.Problems > 0 {
		state += ", " + plural(s.Problems, "problem", "problems")
	}
	return state
}

// count formats a counter; a dash if there is none.
func count(n *uint64) string {
	if n == nil {
		return "-"
	}
	return thousands(*n)
}

// refusedPackets formats how many packets were refused; a dash if there is no traffic.
func refusedPackets(t *statusapi.Traffic) string {
	if t == nil {
		return "-"
	}
	return thousands(total(t.Refused))
}

// sum adds two counters. It is nil if one of them is.
func sum(a, b *uint64) *uint64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

func writeServices(w io.Writer, r *StatusReport, o StatusOptions) error {
	if len(r.Services) > 0 {
		fmt.Fprintln(w)
		t := newTable(w, serviceHeads(o.Output == "wide")...).fit(o.columns, 2)
		for i := range r.Services {
			t.line(serviceLine(&r.Services[i], r.Node.Now, o.Output == "wide")...)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if more := r.Node.Counts.Services - len(r.Services); more > 0 && !o.Problems && o.Namespace == "" {
		fmt.Fprintf(w, "\n%s not shown; -A shows all, -n NAMESPACE those of one namespace\n", plural(more, "Service", "Services"))
	}
	return nil
}
