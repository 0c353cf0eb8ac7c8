package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"
)

const (
	// waitTime is how long --wait waits unless it is told.
	waitTime = time.Minute

	// topPeriod is how often top looks at the traffic unless it is told.
	topPeriod = 2 * time.Second
)

// AddFlags adds the flags that say what of the status is shown.
func (o *StatusOptions) AddFlags(fs *pflag.FlagSet) {
	fs.Func("wait", "wait until everything known is in force, for up to this `TIME`; 0s asks once", o.setWait)
	fs.Lookup("wait").NoOptDefVal = waitTime.String()
	fs.BoolVar(&o.Problems, "problems", false, "show only what somebody should look at")
	fs.BoolVarP(&o.Watch, "watch", "w", false, "go on, and show Services again when they change; with names, these")
	fs.StringVarP(&o.Output, "output", "o", "", "`FORMAT`: "+strings.Join(StatusFormats, ", "))
	fs.StringVarP(&o.Namespace, "namespace", "n", "", "show the Services of this `NAMESPACE`")
	fs.BoolVarP(&o.All, "all-namespaces", "A", false, "show all Services, however many there are")
	fs.StringVar(&o.SortBy, "sort-by", "", "`COLUMN`: name, used, since, state, connections or bytes; with a minus, the other way round")
}

func (o *StatusOptions) setWait(text string) error {
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("want no less than 0s")
	}
	o.Wait = &d
	return err
}

func (o *StatusOptions) Check() error {
	if o.Output != "" {
		if err := checkFormat(o.Output, StatusFormats); err != nil {
			return err
		}
	}
	switch {
	case o.Watch && o.Problems:
		return errors.New("--watch shows every change, --problems ends with what it found: leave one out")
	case o.Watch && o.Output != "" && o.Output != "wide":
		return fmt.Errorf("--watch shows lines for people: leave it out, or --output %s", o.Output)
	}
	return nil
}

// ExplainOptions are what is asked about a packet, and how the answer is written.
type ExplainOptions struct{ From, Protocol, In, Output string }

// AddFlags adds the flags that say which packet it is.
func (o *ExplainOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.From, "from", "", "the client's `IP`; without it, the node itself")
	fs.StringVar(&o.Protocol, "proto", "", "tcp, udp or sctp; without it, tcp or what the Service's port has")
	fs.StringVar(&o.In, "in", "", "the `INTERFACE` that the packet comes in on")
	fs.StringVarP(&o.Output, "output", "o", "text", "`FORMAT`: "+strings.Join(ExplainFormats, ", "))
}

func (o *ExplainOptions) Check() error { return checkFormat(o.Output, ExplainFormats) }

// Query returns the question about a packet to somewhere, as the daemon takes it.
func (o *ExplainOptions) Query(to string) url.Values {
	q := url.Values{"to": {to}}
	for name, value := range map[string]string{"from": o.From, "proto": o.Protocol, "in": o.In} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// checkFormat refuses a format that is not one of those that there are.
func checkFormat(format string, formats []string) error {
	if !slices.Contains(formats, format) {
		return fmt.Errorf("--output %q: want %s", format, strings.Join(formats, ", "))
	}
	return nil
}

// AddFlags adds the flags that say what of the traffic is shown.
func (o *TopOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&o.Namespace, "namespace", "n", "", "show the Services of this `NAMESPACE`")
	fs.BoolVarP(&o.Endpoints, "endpoints", "e", false, "show each endpoint")
	fs.StringVar(&o.SortBy, "sort-by", TopColumns[0], "`COLUMN`: "+strings.Join(TopColumns, ", "))
	fs.DurationVar(&o.Period, "period", topPeriod, "`TIME` from one look to the next")
}

func (o *TopOptions) Check() error {
	if o.Period < 100*time.Millisecond {
		return fmt.Errorf("--period %v: want at least 100ms", o.Period)
	}
	return nil
}

// ShowStatus shows the status as the options have it, and returns a finding as an
// [ExitError].
func ShowStatus(ctx context.Context, w io.Writer, c Client, o StatusOptions) error {
	if o.Wait != nil {
		if err := Wait(ctx, c, *o.Wait); err != nil {
			e := &ExitError{Code: ExitNoAnswer, Err: fmt.Errorf("waited %v: %w", *o.Wait, err)}
			if finding, ok := errors.AsType[*ExitError](err); ok {
				e.Code = finding.Code
			}
			return e
		}
	}
	r, err := Status(ctx, w, c, o)
	switch {
	case err != nil:
		return err
	case o.Watch:
		return Follow(ctx, w, c, o)
	case o.Problems && r.Troubled():
		return &ExitError{Code: ExitFinding}
	}
	return nil
}

// ShowTop shows the traffic: again and again on a terminal, and else once.
func ShowTop(ctx context.Context, w io.Writer, traffic Traffic, o TopOptions) error {
	if _, _, err := Terminal(w); err != nil {
		return top(ctx, w, traffic, o, nil)
	}
	fmt.Fprint(w, "\x1b[2J")
	return top(ctx, w, traffic, o, func() screen {
		width, height, _ := Terminal(w) // one that has gone fails when it is written to
		return screen{width, height}
	})
}

// Terminal returns the size of the terminal that a writer is, if it is one.
func Terminal(w io.Writer) (width, height int, err error) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0, errors.New("not a terminal")
	}
	return term.GetSize(int(f.Fd()))
}
