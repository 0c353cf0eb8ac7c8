package cli

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

// TestAnswering checks that every error has code ExitNoAnswer, except a finding.
func TestAnswering(t *testing.T) {
	tests := []struct {
		name string
		args []string
		err  error
		code int
		want string
	}{
		{"fine", nil, nil, 0, ""},
		{"a finding", nil, &ExitError{Code: ExitFinding}, ExitFinding, "exit code 1"},
		{"an error", nil, errors.New("no such Service"), ExitNoAnswer, "no such Service"},
		{"a wrong flag", []string{"--nope"}, nil, ExitNoAnswer, "unknown flag: --nope (ask --help lists the flags)"},
		{"a mistyped flag", []string{"--waiit=1s"}, nil, ExitNoAnswer, "unknown flag: --waiit (did you mean --wait? ask --help lists the flags)"},
		{"a flag of one letter", []string{"-w"}, nil, ExitNoAnswer, "unknown shorthand flag: 'w' in -w (ask --help lists the flags)"},
		{"an argument", []string{"more"}, nil, ExitNoAnswer, `unknown command "more" for "ask"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := Answering(&cobra.Command{
				Use: "ask", Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
				RunE: func(*cobra.Command, []string) error { return tt.err },
			})
			cmd.Flags().Duration("wait", 0, "")
			cmd.Flags().Bool("waits", false, "")
			cmd.Flags().Lookup("waits").Hidden = true
			cmd.SetArgs(append([]string{}, tt.args...)) // nil: those of the test
			err := cmd.Execute()
			code, text := 0, ""
			if exit, ok := errors.AsType[*ExitError](err); ok {
				code, text = exit.Code, exit.Error()
			}
			if code != tt.code || text != tt.want || (err == nil) != (code == 0) {
				t.Errorf("exit code %d, %q, error %v; want %d, %q", code, text, err, tt.code, tt.want)
			}
		})
	}
}
