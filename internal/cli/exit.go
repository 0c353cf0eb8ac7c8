package cli

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

// The codes that a command which answers a question exits with, if not with 0.
const (
	ExitFinding  = 1 // the answer is that something is not as it should be
	ExitNoAnswer = 2
)

// ExitError says with which code the process ends.
type ExitError struct {
	Code int
	Err  error // what to tell; nil: all is said
}

// Error tells the cause, in a line that is safe for a terminal: what it says may
// come from far away.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return "exit code " + strconv.Itoa(e.Code)
	}
	return Clean(e.Err.Error())
}

func (e *ExitError) Unwrap() error { return e.Err }

// Answering makes a command one that answers a question: whatever keeps it from
// that, a wrong flag or argument included, is told with ExitNoAnswer.
func Answering(cmd *cobra.Command) *cobra.Command {
	run, args := cmd.RunE, cmd.Args
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return noAnswer(run(cmd, args)) }
	cmd.Args = func(cmd *cobra.Command, given []string) error { return noAnswer(args(cmd, given)) }
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return noAnswer(fmt.Errorf("%w (%s --help lists the flags)", err, cmd.CommandPath()))
	})
	return cmd
}

func noAnswer(err error) error {
	if _, ok := errors.AsType[*ExitError](err); ok || err == nil {
		return err
	}
	return &ExitError{ExitNoAnswer, err}
}
