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

// Wait asks the daemon until everything is in force, at most until timeout; with a
// timeout of 0 it asks once. It then returns what is not in force, as an [ExitError]
// with code ExitFinding, or another error if the daemon did not answer. It also waits
// for a daemon that does not answer yet.
func Wait(ctx context.Context, c Client, timeout time.Duration) error {
	if timeout == 0 {
		return inForce(ctx, c)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
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
			return last // This error may only say that the time is up.
		}
		last = err
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// inForce asks once whether everything is in force.
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

// NotInForce returns an error that says what is not in force, or nil.
func NotInForce(n *statusapi.Node) error {
	if n.InForce() {
		return nil
	}
	return fmt.Errorf("not everything is in force: %s", n.Judge().Text)
}

// Follow writes a line for each Service that changes in the kernel, until ctx ends.
func Follow(ctx context.Context, w io.Writer, c Client, o StatusOptions) error {
	last, err := newest(ctx, c)
	if err != nil {
		return err
	}
	tick := time.NewTicker(watchPeriod)
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
			if err := writeChanged(ctx, w, c, o, name); err != nil {
				return err
			}
		}
		if seen.missed > 0 {
			if _, err := fmt.Fprintf(w, "%s not shown: there were too many at once\n", plural(seen.missed, "change", "changes")); err != nil {
				return err
			}
		}
	}
}

// newest returns the number of the last change, 0 if there is none.
func newest(ctx context.Context, c Client) (uint64, error) {
	var list statusapi.ChangeList
	err := c.Get(ctx, statusapi.ChangesPath, url.Values{"limit": {"1"}}, &list)
	if err != nil || len(list.Items) == 0 {
		return 0, err
	}
	return list.Items[0].Number, nil
}

// changes are the changes after a number.
type changes struct {
	services []string // NAMESPACE/NAME, each once, in the order of their first change
	newest   uint64   // the number of the last change
	missed   int      // how many are not on the first page, and so not in services
}

// changedSince requests the changes after a number. If the daemon's last number is
// smaller, the daemon was restarted, and all of its changes are new.
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

// writeChanged writes a line for a Service, if the options select it. A Service that
// does not exist any more has state Removed.
func writeChanged(ctx context.Context, w io.Writer, c Client, o StatusOptions, service string) error {
	namespace, name, _ := strings.Cut(service, "/")
	if !o.wants(namespace, name) {
		return nil
	}
	var s statusapi.Service
	now := time.Now()
	if err := c.Get(ctx, statusapi.ServicePath(namespace, name), url.Values{"limit": {"1"}}, &s); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		if gone, ok := errors.AsType[*statusapi.ResponseError](err); !ok || gone.Code != http.StatusNotFound {
			return err
		}
		s.ServiceSummary = statusapi.ServiceSummary{Namespace: namespace, Name: name, State: "Removed", Since: now}
	}
	t := newTable(w).fit(o.columns, 2)
	t.line(serviceLine(&s.ServiceSummary, now, o.Output == "wide")...)
	return t.Flush()
}
