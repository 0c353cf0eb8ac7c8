package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sluice/internal/statusapi"
)

// Wait asks until everything known is in force, or time is up; it then says what
// is not, which is a finding, or why the daemon could not be asked, which is none.
// One that does not answer yet may still come. Without patience it asks once.
func Wait(ctx context.Context, c Client, patience time.Duration) error {
	if patience == 0 {
		return inForce(ctx, c)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := inForce(ctx, c)
		if err == nil {
			return nil
		}
		if last != nil && ctx.Err() != nil {
			return last // what it was before time was up says more
		}
		last = err
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// inForce asks once whether everything known is in force.
func inForce(ctx context.Context, c Client) error {
	var n statusapi.Node
	if err := c.Get(ctx, statusapi.NodePath, nil, &n); err != nil {
		return err
	}
	if err := NotInForce(&n); err != nil {
		return &ExitError{Code: ExitFinding, Err: err}
	}
	return nil
}

// NotInForce says what is not, if not everything known is in force.
func NotInForce(n *statusapi.Node) error {
	if n.InForce() {
		return nil
	}
	return fmt.Errorf("not everything is in force: %s", syncLine(n))
}

// Follow shows Services again whenever they change in the kernel, until ctx ends.
func Follow(ctx context.Context, w io.Writer, c Client, o StatusOptions) error {
	last, err := newest(ctx, c)
	if err != nil {
		return err
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		seen, err := changedSince(ctx, c, last)
		if err != nil {
			return cmp.Or(ctx.Err(), err)
		}
		last = seen.newest
		for _, name := range seen.services {
			if err := followed(ctx, w, c, o, name); err != nil {
				return err
			}
		}
		if seen.missed > 0 {
			if _, err := fmt.Fprintf(w, "%s not shown: they came too fast\n", plural(seen.missed, "change", "changes")); err != nil {
				return err
			}
		}
	}
}

// newest returns the number of the last change.
func newest(ctx context.Context, c Client) (uint64, error) {
	var list statusapi.ChangeList
	err := c.Get(ctx, statusapi.ChangesPath, url.Values{"limit": {"1"}}, &list)
	if err != nil || len(list.Items) == 0 {
		return 0, err
	}
	return list.Items[0].Number, nil
}

// changes are those between two looks.
type changes struct {
	services []string // each once, that which changed first before others
	newest   uint64
	missed   int // that the answer has no room for
}

// changedSince asks for what changed after a number. A daemon that has a smaller
// one has begun anew, so that all of its changes are news.
func changedSince(ctx context.Context, c Client, number uint64) (changes, error) {
	var list statusapi.ChangeList
	var out changes
	if err := c.Get(ctx, statusapi.ChangesPath, url.Values{"limit": {fmt.Sprint(statusapi.MaxPage)}}, &list); err != nil {
		return out, err
	}
	if len(list.Items) > 0 {
		out.newest = list.Items[0].Number
	}
	if out.newest < number {
		number = 0
	}
	out.missed = int(out.newest - number)
	seen := map[string]bool{}
	for i := len(list.Items) - 1; i >= 0; i-- {
		ch := &list.Items[i]
		if ch.Number <= number {
			continue
		}
		out.missed--
		name, _, _ := strings.Cut(ch.ServicePort, ":")
		if parts := strings.SplitN(name, "/", 3); len(parts) == 3 {
			name = parts[0] + "/" + parts[1] // a port without a name
		}
		if !seen[name] {
			out.services, seen[name] = append(out.services, name), true
		}
	}
	return out, nil
}

// followed shows a Service as a line, and one that has gone as gone.
func followed(ctx context.Context, w io.Writer, c Client, o StatusOptions, name string) error {
	namespace, rest, _ := strings.Cut(name, "/")
	if !o.wants(namespace, rest) {
		return nil
	}
	var s statusapi.Service
	path := statusapi.ServicesPath + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(rest)
	now := time.Now()
	if err := c.Get(ctx, path, url.Values{"limit": {"1"}}, &s); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		if gone, ok := errors.AsType[*statusapi.ResponseError](err); !ok || gone.Code != http.StatusNotFound {
			return err
		}
		s.ServiceSummary = statusapi.ServiceSummary{Namespace: namespace, Name: rest, State: "Removed", Since: now}
	}
	t := newTable(w)
	t.line(serviceLine(&s.ServiceSummary, now, o.Output == "wide")...)
	return t.Flush()
}
