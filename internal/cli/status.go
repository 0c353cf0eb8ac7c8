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

// Client asks a daemon.
type Client interface {
	Get(ctx context.Context, path string, query url.Values, to any) error
}

const (
	// listed is up to how many Services are shown if nobody asks for all.
	listed = 50

	// problemsListed is how many problems are, as those who write objects decide
	// how many there are.
	problemsListed = 20

	// period is how often a daemon is asked by who waits for something.
	period = time.Second
)

// StatusOptions say what of the status is shown.
type StatusOptions struct {
	Services  []string // NAMESPACE/NAME; none: all
	Namespace string
	All       bool // however many there are
	Endpoints bool // all of named Services, instead of the first page
	Problems  bool // only what somebody should look at
	SortBy    string
	Output    string // wide, json, yaml or name; empty: for people

	Wait  *time.Duration // for everything to be in force, before; nil: do not ask
	Watch bool           // go on, and show what changes
}

// StatusFormats are the outputs that there are.
var StatusFormats = []string{"wide", "json", "yaml", "name"}

// StatusReport is what the status says, for programs.
type StatusReport struct {
	Node     statusapi.Node             `json:"node"`
	Problems []statusapi.Problem        `json:"problems"`
	Services []statusapi.ServiceSummary `json:"services"`
	Details  []statusapi.Service        `json:"details,omitempty"` // of Services that were named

	problems int // that there are
}

// Troubled reports whether somebody should look at something.
func (r *StatusReport) Troubled() bool {
	return !r.Node.Health.Healthy || r.problems > 0 || !r.Node.InForce() ||
		slices.ContainsFunc(r.Services, func(s statusapi.ServiceSummary) bool { return s.Troubled() })
}

// Status asks for the status and shows it.
func Status(ctx context.Context, w io.Writer, c Client, o StatusOptions) (*StatusReport, error) {
	r, err := Report(ctx, c, o)
	if err != nil {
		return nil, err
	}
	return r, writeAll(w, func(w io.Writer) error { return writeReport(w, r, o) })
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
	writeProblems(w, r)
	if len(o.Services) > 0 {
		return writeDetails(w, r)
	}
	return writeServices(w, r, o)
}

// Report asks for all that is to be shown.
func Report(ctx context.Context, c Client, o StatusOptions) (*StatusReport, error) {
	r := &StatusReport{Problems: []statusapi.Problem{}, Services: []statusapi.ServiceSummary{}} // JSON has no null
	if err := c.Get(ctx, statusapi.NodePath, nil, &r.Node); err != nil {
		return nil, err
	}
	if len(o.Services) > 0 {
		return r, details(ctx, c, o, r)
	}
	query := url.Values{}
	if o.Namespace != "" {
		query.Set("namespace", o.Namespace)
	}
	var problems statusapi.ProblemList
	if err := c.Get(ctx, statusapi.ProblemsPath, query, &problems); err != nil {
		return nil, err
	}
	r.Problems, r.problems = append(r.Problems, problems.Items...), problems.Total
	query.Set("sort", cmp.Or(o.SortBy, "name"))
	all := o.All || o.Namespace != "" || o.Output != ""
	if o.Problems || !all && r.Node.Counts.Services > listed {
		query.Set("problems", "true")
	}
	return r, pages(ctx, c, query, all || o.Problems, r)
}

// pages asks for all Services, or for some.
func pages(ctx context.Context, c Client, query url.Values, all bool, r *StatusReport) error {
	get := func(ctx context.Context, query url.Values) (int, string, error) {
		var page statusapi.ServiceList
		err := c.Get(ctx, statusapi.ServicesPath, query, &page)
		r.Services = append(r.Services, page.Items...)
		return len(page.Items), page.Continue, err
	}
	if all {
		return statusapi.EachPage(ctx, query, get)
	}
	query.Set("limit", strconv.Itoa(listed))
	_, _, err := get(ctx, query)
	return err
}

// details asks for Services by name.
func details(ctx context.Context, c Client, o StatusOptions, r *StatusReport) error {
	for _, name := range o.Services {
		namespace, name, err := SplitName(name, o.Namespace)
		if err != nil {
			return err
		}
		path := statusapi.ServicesPath + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
		s, err := detailsOf(ctx, c, path, o.Endpoints)
		if err != nil {
			return err
		}
		r.Details, r.Services = append(r.Details, s), append(r.Services, s.ServiceSummary)
		r.Problems, r.problems = append(r.Problems, s.Found...), r.problems+len(s.Found)
	}
	return nil
}

// wants reports whether a Service is one of those that are asked for.
func (o *StatusOptions) wants(namespace, name string) bool {
	if len(o.Services) == 0 {
		return o.Namespace == "" || o.Namespace == namespace
	}
	return slices.ContainsFunc(o.Services, func(text string) bool {
		ns, n, err := SplitName(text, o.Namespace)
		return err == nil && ns == namespace && n == name
	})
}

// SplitName reads NAMESPACE/NAME, or a NAME in a namespace that is given.
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

// writeNode writes the head of a status: the node, and whether all is in force.
func writeNode(w io.Writer, n *statusapi.Node) {
	health := "healthy"
	if !n.Health.Healthy {
		health = "NOT HEALTHY: " + n.Health.Reason
	}
	fmt.Fprintf(w, "%s: mode %s, %s, up %s, %s\n", Clean(n.Name), Clean(n.Mode), Clean(strings.Join(n.Families, " and ")), age(n.Now, n.Started), Clean(health))
	fmt.Fprintf(w, "%s, %s, %s\n", plural(n.Counts.Services, "Service", "Services"), plural(n.Counts.Ports, "port", "ports"),
		plural(n.Counts.Endpoints, "endpoint", "endpoints"))
	fmt.Fprintln(w, Clean(syncLine(n)))
	if t := n.Tracking; t != nil && t.Limit > 0 {
		fmt.Fprintf(w, "Connection tracking: %s of %s entries (%d%%)\n", thousands(t.Entries), thousands(t.Limit), t.Entries*100/t.Limit)
	}
}

// syncLine says in a line how the kernel stands to what is wanted.
func syncLine(n *statusapi.Node) string {
	last := ""
	if n.Sync.Last != nil {
		last = fmt.Sprintf(" (last sync %s ago, took %s)", age(n.Now, *n.Sync.Last), seconds(n.Sync.Seconds))
	}
	switch {
	case !n.Sync.Done && n.Sync.Error == "":
		return "NOT SYNCED YET: " + cmp.Or(n.Sync.Reason, "the first sync is under way")
	case n.Sync.Error != "":
		return "SYNC FAILS: " + n.Sync.Error + last
	case n.Counts.Pending+n.Counts.Refused > 0:
		return fmt.Sprintf("%s pending, %s refused by the kernel%s", plural(n.Counts.Pending, "port", "ports"), thousands(n.Counts.Refused), last)
	default:
		return "All in force" + last
	}
}

func writeProblems(w io.Writer, r *StatusReport) {
	if r.problems == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", strings.ToUpper(plural(r.problems, "problem", "problems")))
	some := r.Problems[:min(len(r.Problems), problemsListed)]
	for _, p := range some {
		fmt.Fprintf(w, "  %s\n", Clean(p.String()))
	}
	if more := r.problems - len(some); more > 0 {
		fmt.Fprintf(w, "  and %s more (-o json has up to %d)\n", thousands(more), statusapi.DefaultPage)
	}
}

// serviceHeads are the columns of a list of Services.
func serviceHeads(wide bool) []string {
	heads := []string{"NAMESPACE", "NAME", "ADDRESS", "PORTS", "ENDPOINTS", "STATE", "SINCE"}
	if wide {
		heads = append(heads, "EXTERNAL", "CONNECTIONS", "ACTIVE", "BYTES", "REASON")
	}
	return heads
}

// serviceLine is a Service as a line of a list.
func serviceLine(s *statusapi.ServiceSummary, now time.Time, wide bool) []string {
	state := string(s.State)
	if s.State == statusapi.InForce && s.Used == 0 {
		state = "NoEndpoints"
	}
	if s.Problems > 0 {
		state += "!"
	}
	cells := []string{s.Namespace, s.Name, s.Address, strings.Join(s.Ports, ","), fmt.Sprintf("%d/%d", s.Used, s.Endpoints), state, age(now, s.Since)}
	if wide {
		t := cmp.Or(s.Traffic, &statusapi.Traffic{})
		cells = append(cells, strings.Join(s.External, ","), count(t.Connections), count(t.Active), count(sum(t.BytesIn, t.BytesOut)), s.Reason)
	}
	return cells
}

// count writes a number, if something was counted.
func count(n *uint64) string {
	if n == nil {
		return "-"
	}
	return thousands(*n)
}

func sum(a, b *uint64) *uint64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

func writeServices(w io.Writer, r *StatusReport, o StatusOptions) error {
	if len(r.Services) > 0 {
		fmt.Fprintln(w)
		t := newTable(w, serviceHeads(o.Output == "wide")...)
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
