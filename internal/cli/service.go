package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"sluice/internal/statusapi"
)

// getService requests one Service, with all of its endpoints or the first page.
func getService(ctx context.Context, c Client, path string, all bool) (s statusapi.Service, err error) {
	if !all {
		return s, c.Get(ctx, path, nil, &s)
	}
	first := true
	return s, statusapi.EachPage(ctx, nil, func(ctx context.Context, query url.Values) (items int, next string, err error) {
		var page statusapi.Service
		if err := c.Get(ctx, path, query, &page); err != nil {
			return 0, "", err
		}
		for i := range page.Rows {
			items, next = max(items, len(page.Rows[i].Endpoints)), cmp.Or(next, page.Rows[i].Continue)
		}
		if first {
			s, first = page, false
		} else {
			addEndpoints(s.Rows, page.Rows)
		}
		return items, next, nil
	})
}

// addEndpoints adds a page of endpoints to their ports. A port that was added after
// the first page is left out.
func addEndpoints(ports, page []statusapi.Port) {
	for _, p := range page {
		at := slices.IndexFunc(ports, func(o statusapi.Port) bool {
			return o.Name == p.Name && o.Protocol == p.Protocol && o.Family == p.Family
		})
		if at >= 0 {
			ports[at].Endpoints, ports[at].Continue = append(ports[at].Endpoints, p.Endpoints...), p.Continue
		}
	}
}

// writeDetails writes everything that is known about the named Services.
func writeDetails(w io.Writer, r *StatusReport, o StatusOptions) error {
	for _, s := range r.Details {
		fmt.Fprintf(w, "\nService %s\n", Clean(s.Namespace+"/"+s.Name))
		writeRefused(w, s.Traffic)
		for i := range s.Rows {
			if err := writePort(w, &s.Rows[i], r.Node.Now, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeRefused writes how many packets to a Service were refused, by reason, if any were.
func writeRefused(w io.Writer, t *statusapi.Traffic) {
	if t == nil || total(t.Refused) == 0 {
		return
	}
	var reasons []string
	for _, why := range slices.Sorted(maps.Keys(t.Refused)) {
		reasons = append(reasons, why+" "+thousands(t.Refused[why]))
	}
	fmt.Fprintf(w, "  Refused packets: %s\n", Clean(strings.Join(reasons, ", ")))
}

func writePort(w io.Writer, p *statusapi.Port, now time.Time, o StatusOptions) error {
	name := p.Protocol + " " + p.Family
	if p.Name != "" {
		name = p.Name + " " + name
	}
	fmt.Fprintf(w, "\n  Port %s: %s\n", Clean(name), Clean(statusLine(&p.Status, now)))
	for _, f := range p.Frontends {
		lost := ""
		if f.LostTo != "" {
			lost = "   lost to Service " + f.LostTo
		}
		fmt.Fprintf(w, "    %-13s %s%s\n", Clean(f.Kind), Clean(f.Address), Clean(lost))
	}
	fmt.Fprintf(w, "    %-13s internal %s, external %s%s\n", "Policy", Clean(p.Internal), Clean(p.External), Clean(otherPolicy(p)))
	if len(p.Endpoints) == 0 {
		fmt.Fprintln(w, "    No endpoints")
		return nil
	}
	some := p.Endpoints[:min(len(p.Endpoints), statusapi.DefaultPage)]
	if err := writeEndpoints(w, some, o); err != nil {
		return err
	}
	if left := p.Total - len(some); left > 0 {
		fmt.Fprintf(w, "    and %s more\n", plural(left, "endpoint", "endpoints"))
	}
	return nil
}

func writeEndpoints(w io.Writer, all []statusapi.Endpoint, o StatusOptions) error {
	const indent = "    "
	var b strings.Builder
	t := newTable(&b, "ENDPOINT", "USED", "WHERE", "CONNECTIONS", "FAILED", "WHY NOT").fit(max(0, o.columns-len(indent)), 1)
	for i := range all {
		counted := cmp.Or(all[i].Traffic, &statusapi.Traffic{})
		t.line(all[i].Address, usedWord(&all[i]), where(&all[i]), count(counted.Connections), count(counted.Failed), all[i].Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		fmt.Fprint(w, indent, line)
	}
	return nil
}

// otherPolicy returns what else decides about connections to a port.
func otherPolicy(p *statusapi.Port) string {
	var b strings.Builder
	if p.Affinity > 0 {
		fmt.Fprintf(&b, ", affinity %s", time.Duration(p.Affinity*float64(time.Second)))
	}
	if p.Balancing != "" {
		fmt.Fprintf(&b, ", %s", p.Balancing)
	}
	if p.AllowFrom != nil {
		fmt.Fprintf(&b, ", LoadBalancer from %s", strings.Join(*p.AllowFrom, " "))
	}
	return b.String()
}

// statusLine returns whether a port is in force in the kernel, and since when.
func statusLine(s *statusapi.Status, now time.Time) string {
	switch {
	case s.State == statusapi.Refused:
		return "REFUSED by the kernel: " + s.Reason
	case s.Pending != nil:
		return "pending for " + age(now, *s.Pending)
	case s.Since != nil:
		return "in force for " + age(now, *s.Since)
	default:
		return string(s.State)
	}
}

func usedWord(e *statusapi.Endpoint) string {
	switch {
	case e.Used:
		return "yes"
	case e.UsedLocal:
		return "locally"
	default:
		return "no"
	}
}

func where(e *statusapi.Endpoint) string {
	if e.Local {
		return "this node"
	}
	return "elsewhere"
}
