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
	// defaultWait is how long --wait waits without a value.
	defaultWait = time.Minute

	// defaultPeriod is the default of top's --period.
	defaultPeriod = 2 * time.Second
)

// AddFlags adds the flags of the status command.
func (o *StatusOptions) AddFlags(fs *pflag.FlagSet) {
	fs.Func("wait", "wait until everything is in force, for up to this `TIME`; 0s asks once", o.setWait)
	fs.Lookup("wait").NoOptDefVal = defaultWait.String()
	fs.BoolVar(&o.Problems, "problems", false, "show only what needs attention, and exit with 1 if anything does")
	fs.BoolVarP(&o.Watch, "watch", "w", false, "continue, and show Services when they change: all, or the named ones")
	fs.StringVarP(&o.Output, "output", "o", "", "`FORMAT`: "+strings.Join(StatusFormats, ", "))
	fs.StringVarP(&o.Namespace, "namespace", "n", "", "show the Services of this `NAMESPACE`")
	fs.BoolVarP(&o.All, "all-namespaces", "A", false, "show all Services, however many there are")
	fs.StringVar(&o.SortBy, "sort-by", "", "`COLUMN`: name, used, since, state, connections or bytes; with a minus before it, descending")
}

func (o *StatusOptions) setWait(text string) error {
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("want no less than 0s")
	}
	o.Wait = &d
	return err
}

// Check returns an error for flags that are invalid or contradict each other.
func (o *StatusOptions) Check() error {
	if o.Output != "" {
		if err := checkFormat(o.Output, StatusFormats); err != nil {
			return err
		}
	}
	switch {
	case o.Watch && o.Problems:
		return errors.New("--watch and --problems exclude each other: omit one")
	case o.Watch && o.Output != "" && o.Output != "wide":
		return fmt.Errorf("--watch and --output %s exclude each other: omit one", o.Output)
	}
	return nil
}

// ExplainOptions describe the packet to explain, and the format of the answer.
type ExplainOptions struct{ From, Protocol, In, Output string }

// AddFlags adds the flags of the explain command.
func (o *ExplainOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.From, "from", "", "the client's `IP` address; by default, the node itself")
	fs.StringVar(&o.Protocol, "proto", "", "tcp, udp or sctp; by default, that of the Service's port, or tcp")
	fs.StringVar(&o.In, "in", "", "the `INTERFACE` that the packet arrives on")
	addFormat(fs, &o.Output)
}

// addFormat adds the flag --output, whose value is one of ExplainFormats.
func addFormat(fs *pflag.FlagSet, output *string) {
	fs.StringVarP(output, "output", "o", "text", "`FORMAT`: "+strings.Join(ExplainFormats, ", "))
}

// Check returns an error for flags that are invalid.
func (o *ExplainOptions) Check() error { return checkFormat(o.Output, ExplainFormats) }

// Query returns the query of a request for an explanation, for a packet to a
// destination.
func (o *ExplainOptions) Query(to string) url.Values {
	q := url.Values{"to": {to}}
	for name, value := range map[string]string{"from": o.From, "proto": o.Protocol, "in": o.In} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// checkFormat returns an error for a format that is not one of formats.
func checkFormat(format string, formats []string) error {
	if !slices.Contains(formats, format) {
		return fmt.Errorf("--output %q: want %s", format, strings.Join(formats, ", "))
	}
	return nil
}

// AddFlags adds the flags of the top command.
func (o *TopOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&o.Namespace, "namespace", "n", "", "show the Services of this `NAMESPACE`")
	fs.BoolVarP(&o.Endpoints, "endpoints", "e", false, "show each endpoint")
	fs.StringVar(&o.SortBy, "sort-by", TopColumns[0], "`COLUMN`: "+strings.Join(TopColumns, ", "))
	fs.DurationVar(&o.Period, "period", defaultPeriod, "`TIME` from one reading of the counters to the next")
}

// Check returns an error for flags that are invalid.
func (o *TopOptions) Check() error {
	switch {
	case o.Period < 100*time.Millisecond:
		return fmt.Errorf("--period %v: want at least 100ms", o.Period)
	case !slices.Contains(TopColumns, o.SortBy):
		return fmt.Errorf("--sort-by %q: want %s", o.SortBy, strings.Join(TopColumns, ", "))
	}
	return nil
}

// ShowStatus runs the status command. It returns a finding as an [ExitError].
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
	o.fitTerminal(w)
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

// ShowTop runs the top command: on a terminal it shows the traffic until ctx ends,
// otherwise once.
func ShowTop(ctx context.Context, w io.Writer, traffic Traffic, o TopOptions) error {
	if _, _, err := Terminal(w); err != nil {
		return top(ctx, w, traffic, o, nil)
	}
	fmt.Fprint(w, "\x1b[2J")
	return top(ctx, w, traffic, o, func() screen {
		width, height, _ := Terminal(w) // if the terminal is gone, writing to it fails
		return screen{width, height}
	})
}

// Terminal returns the size of the terminal that w writes to, and an error if it is
// not a terminal.
func Terminal(w io.Writer) (width, height int, err error) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0, errors.New("not a terminal")
	}
	return term.GetSize(int(f.Fd()))
}
