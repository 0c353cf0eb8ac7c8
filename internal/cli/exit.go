package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/internal/similar"
)

// The exit codes other than 0 of commands that answer a question.
const (
	ExitFinding  = 1 // the answer is that something is not as it should be
	ExitNoAnswer = 2 // there is no answer
)

// ExitError is an error that sets the exit code of the process.
type ExitError struct {
	Code int
	Err  error // what to print; nil if everything is printed already
}

// Error returns the text of Err in one line that is safe for a terminal, because it
// may come from another host.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return "exit code " + strconv.Itoa(e.Code)
	}
	return Clean(e.Err.Error())
}

func (e *ExitError) Unwrap() error { return e.Err }

// Answering makes every error of a command an [ExitError]: an error that is none yet,
// including an invalid flag or argument, has code ExitNoAnswer. It modifies cmd and
// returns it.
func Answering(cmd *cobra.Command) *cobra.Command {
	run, args := cmd.RunE, cmd.Args
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return noAnswer(run(cmd, args)) }
	cmd.Args = func(cmd *cobra.Command, given []string) error { return noAnswer(args(cmd, given)) }
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return noAnswer(FlagError(cmd, err))
	})
	return cmd
}

// FlagError adds to an error of flags which ones may have been meant, and where they are
// listed.
func FlagError(cmd *cobra.Command, err error) error {
	hint := ""
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		near := similar.Names(unknown.GetSpecifiedName(), func(yield func(string) bool) {
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if !f.Hidden {
					_ = yield(f.Name) // similar.Names takes all of them
				}
			})
		})
		if len(near) > 0 {
			hint = "did you mean --" + strings.Join(near, " or --") + "? "
		}
	}
	return fmt.Errorf("%w (%s%s --help lists the flags)", err, hint, cmd.CommandPath())
}

func noAnswer(err error) error {
	if _, ok := errors.AsType[*ExitError](err); ok || err == nil {
		return err
	}
	return &ExitError{ExitNoAnswer, err}
}
