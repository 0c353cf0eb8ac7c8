package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// topPeriod is how often top looks at the traffic unless it is told.
const topPeriod = 2 * time.Second

// newTopCommand returns the command that shows the traffic of Services.
func newTopCommand() *cobra.Command {
	var socket string
	var o cli.TopOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the traffic of Services on this node, as it goes",
		Long: `Show connections, bytes and refusals of each Service, the busiest first: again
and again on a terminal, and else once, over one period.`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	socketFlag(fs, &socket)
	fs.StringVarP(&o.Namespace, "namespace", "n", "", "show the Services of this `NAMESPACE`")
	fs.BoolVarP(&o.Endpoints, "endpoints", "e", false, "show each endpoint")
	fs.StringVar(&o.SortBy, "sort-by", cli.TopColumns[0], "`COLUMN`: "+strings.Join(cli.TopColumns, ", "))
	fs.DurationVar(&o.Period, "period", topPeriod, "`TIME` from one look to the next")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Period < 100*time.Millisecond {
			return fmt.Errorf("--period %v: want at least 100ms", o.Period)
		}
		out := cmd.OutOrStdout()
		live := false
		if _, height, err := terminal(out); err == nil {
			live, o.Lines = true, height
			fmt.Fprint(out, "\x1b[2J")
		}
		return cli.Top(cmd.Context(), out, statusapi.AtSocket(socket), o, live)
	}
	return answering(cmd)
}

// terminal returns the size of the terminal that a writer is, if it is one.
func terminal(w io.Writer) (width, height int, err error) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0, errors.New("not a terminal")
	}
	return term.GetSize(int(f.Fd()))
}
