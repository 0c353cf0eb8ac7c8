package app

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestManual checks that the manual page has all commands and flags that are not
// hidden, and no line that troff takes for a request by accident.
func TestManual(t *testing.T) {
	page, err := execute(t, "man")
	if err != nil {
		t.Fatal(err)
	}
	root := NewProxyCommand("sluice")
	checkFlags(t, root, page)
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			continue
		}
		if there := strings.Contains(page, `.SS "sluice `+troff(c.Use)+`"`); there == c.Hidden {
			t.Errorf("command %s: on the page %t, hidden %t", c.Name(), there, c.Hidden)
		}
		if !c.Hidden {
			checkFlags(t, c, page)
		}
	}
	requests := regexp.MustCompile(`^\.(TH|SH|SS|TP|PP|B|nf|fi|br)( ".*")*$`)
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !requests.MatchString(line) {
			t.Errorf("%q would be taken for a request", line)
		}
		if regexp.MustCompile(`\\([^e&(\-]|$)`).MatchString(line) {
			t.Errorf("%q has an escape that is none of ours", line)
		}
	}
}

// checkFlags checks that the page has the flags of a command.
func checkFlags(t *testing.T, c *cobra.Command, page string) {
	t.Helper()
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if there := strings.Contains(page, troff("--"+f.Name)); there == f.Hidden {
			t.Errorf("flag --%s of %s: on the page %t, hidden %t", f.Name, c.Name(), there, f.Hidden)
		}
	})
}
