package app

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/internal/cli"
	"sluice/internal/dataplane"
	"sluice/internal/statusapi"
)

// subcommands returns the commands that sluice has besides serving.
func subcommands() []*cobra.Command {
	return []*cobra.Command{
		newStatusCommand(),
		newExplainCommand(),
		newTopCommand(),
		newRenderCommand(),
		newBugReportCommand(),
		newVersionCommand(),
		newManCommand(),
		newDialStdioCommand(),
	}
}

// socketFlag adds the flag for the socket of the status API.
func socketFlag(fs *pflag.FlagSet, socket *string) {
	fs.StringVar(socket, "socket", statusapi.DefaultSocket, "ask the daemon at this unix socket, `FILE`")
}

func newStatusCommand() *cobra.Command {
	var socket string
	var o cli.StatusOptions
	cmd := &cobra.Command{
		Use:   "status [NAMESPACE/NAME...]",
		Short: "Show whether Services are in force on this node, problems first",
		Long: `Show the state of this node's daemon, its problems, and whether Services are in
force in the kernel. Without names, Services that need attention are shown, or
all if they are few. On a terminal that is too narrow, each name has a line of
its own, and other cells are shortened; -o wide and programs get them in full.

Exit code: 0; 1 if --wait timed out or --problems found some; 2 if the daemon
did not answer.`,
		Example: `  sluice status
  sluice status shop/cart
  sluice status --wait=30s
  sluice status -A -o wide --sort-by=-connections`,
	}
	fs := cmd.Flags()
	socketFlag(fs, &socket)
	o.AddFlags(fs)
	completeFlag(cmd, "output", cli.StatusFormats)
	cmd.ValidArgsFunction = completeServices(&socket)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		o.Services = args
		return cli.ShowStatus(cmd.Context(), cmd.OutOrStdout(), statusapi.AtSocket(socket), o)
	}
	return cli.Answering(cmd)
}

func newTopCommand() *cobra.Command {
	var socket string
	var o cli.TopOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the live traffic of Services on this node",
		Long: `Show connections, bytes and refusals of each Service, the busiest first: on a
terminal continuously, otherwise once, for one interval.`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	socketFlag(fs, &socket)
	o.AddFlags(fs)
	completeFlag(cmd, "sort-by", cli.TopColumns)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		return cli.ShowTop(cmd.Context(), cmd.OutOrStdout(), cli.TrafficOf(statusapi.AtSocket(socket)), o)
	}
	return cli.Answering(cmd)
}

// newDialStdioCommand returns the command by which remote clients connect to the
// daemon: they need the right to run a command in its pod, or on its node.
func newDialStdioCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:    statusapi.DialStdio,
		Short:  "Connect standard input and output with the daemon, for kubectl sluice",
		Hidden: true,
		Args:   noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := statusapi.DialSocket(cmd.Context(), socket)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), statusapi.Connected)
			return pipe(cmd.Context(), conn, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	socketFlag(cmd.Flags(), &socket)
	return cli.Answering(cmd)
}

// pipe copies data between a connection to the daemon and in and out, until the
// daemon closes the connection or ctx ends. At the end of in, it closes the sending
// side; the daemon then answers pending requests and closes.
func pipe(ctx context.Context, conn *net.UnixConn, in io.Reader, out io.Writer) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.Copy(conn, in) // if the daemon has closed, reading from it ends as well
		_ = conn.CloseWrite()
	}()
	if _, err := io.Copy(out, conn); err != nil && ctx.Err() == nil {
		return fmt.Errorf("copy the daemon's answers to standard output: %w", err)
	}
	return nil
}

// completionTimeout limits a request for completions, for which the user waits.
const completionTimeout = time.Second

// completeServices completes names of Services that the daemon at a socket serves.
// If no daemon answers, it completes nothing.
func completeServices(socket *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		query := url.Values{}
		if namespace, name, ok := strings.Cut(word, "/"); ok {
			query.Set("namespace", namespace)
			query.Set("filter", name)
		} else if word != "" {
			query.Set("filter", word)
		}
		var page statusapi.ServiceList
		if err := statusapi.AtSocket(*socket).Get(ctx, statusapi.ServicesPath, query, &page); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, s := range page.Items {
			if name := s.Namespace + "/" + s.Name; strings.HasPrefix(name, word) {
				names = append(names, cobra.CompletionWithDesc(name, s.Address))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes a flag whose value is one of some words.
func completeFlag(cmd *cobra.Command, flag string, words []string) {
	// It fails only if there is no such flag, which tests would detect.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func completeMode(cmd *cobra.Command) {
	completeFlag(cmd, "proxy-mode", strings.Split(dataplane.Names(" "), " "))
}
