package app

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// newDialStdioCommand returns the command that who is elsewhere reaches the
// daemon by: whoever may run a command in its pod, or on its node, gets a
// connection.
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
			return join(cmd.Context(), conn, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	socketFlag(cmd.Flags(), &socket)
	return cli.Answering(cmd)
}

// join passes on what both sides say until the daemon has nothing more to say,
// or ctx ends. The end of the input is told to the daemon, which answers what it
// was asked and then closes.
func join(ctx context.Context, conn *net.UnixConn, in io.Reader, out io.Writer) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.Copy(conn, in) // if the daemon closes, reading from it says so
		_ = conn.CloseWrite()
	}()
	if _, err := io.Copy(out, conn); err != nil && ctx.Err() == nil {
		return fmt.Errorf("pass on what the daemon says: %w", err)
	}
	return nil
}
