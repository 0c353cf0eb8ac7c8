package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"sluice/internal/bugreport"
	"sluice/internal/cli"
	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

func newBugReportCommand() *cobra.Command {
	var output, metrics string
	s := bugreport.Settings{Host: os.DirFS("/"), Rules: kernelRules, Run: runProgram, Version: build()}
	cmd := &cobra.Command{
		Use:   "bugreport",
		Short: "Pack the state of this node into one file for a bug report",
		Long: `Pack what is needed for remote diagnosis: the daemon's status, rules, metrics,
configuration and flags, and facts about the kernel. Secrets, tokens, keys and
kubeconfigs are not read, and text that looks like one is removed. Whatever
cannot be collected, or not within --timeout, is noted in the file and does not
fail the command.

Exit code: 0; 2 if neither the daemon nor its rules could be read.`,
		Example: `  sluice bugreport
  sluice bugreport --log /var/log/sluice.log
  kubectl -n kube-system exec POD -- sluice bugreport -o - > report.tar.gz`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	socketFlag(fs, &s.Socket)
	fs.StringVarP(&output, "output", "o", "", "write to this `FILE`, which must not exist; - is standard output; "+
		"the default is a name with host and time in the current folder")
	fs.StringVar(&metrics, "metrics-address", "127.0.0.1:10249", "read metrics from the metrics server at this `IP:PORT`")
	fs.DurationVar(&s.Timeout, "timeout", 8*time.Second, "collect for up to this `TIME`; a node with many thousand Services may take longer")
	fs.StringVar(&s.Log, "log", "", "add the end of this log `FILE`")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s.Client, s.Metrics = statusapi.AtSocket(s.Socket), "http://"+metrics
		c, err := bugreport.Gather(cmd.Context(), s)
		if err != nil {
			return err
		}
		return writeReport(c, output, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cli.Answering(cmd)
}

// writeReport writes a report to a file or, if output is -, to stdout, and prints
// what it contains.
func writeReport(c *bugreport.Contents, output string, stdout, stderr io.Writer) error {
	now := time.Now()
	host, err := os.Hostname()
	if err != nil {
		host = "node"
	}
	folder := fmt.Sprintf("sluice-bugreport-%s-%s", host, now.UTC().Format("20060102T150405Z"))
	if output == "-" {
		if err := c.Write(stdout, folder, now); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		printReport(stderr, c, "the report")
		return nil
	}
	if output == "" {
		output = folder + ".tar.gz"
	}
	file, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%w (-o names another file, -o - is standard output)", err)
	}
	if err := errors.Join(c.Write(file, folder, now), file.Close()); err != nil {
		return fmt.Errorf("write the report: %w", errors.Join(err, os.Remove(output)))
	}
	printReport(stdout, c, output)
	return nil
}

func printReport(w io.Writer, c *bugreport.Contents, where string) {
	fmt.Fprintf(w, "Wrote %s:\n", where)
	c.WriteIndex(w)
	fmt.Fprintf(w, `It names Services, addresses and nodes. Text that looked like a secret was removed,
but check the file before you send it: tar -xzOf %s | less
`, strings.Replace(where, "the report", "FILE", 1))
}

// kernelRules lists the objects that a mode has in the kernel for Services: those
// that it would remove if there were none. Rules that do not depend on Services are
// not among them.
func kernelRules(ctx context.Context, name string) ([]byte, error) {
	mode, err := dataplane.Of(config.ProxyMode(name))
	if err != nil {
		return nil, err
	}
	o := NewOptions()
	in, err := o.read(mode.Name)
	if err != nil {
		return nil, err
	}
	var difference bytes.Buffer
	r := &dataplane.Rendering{Settings: o.settingsOf(in.config), Want: resolve.New(resolve.Settings{}).State(), Diff: true, Out: &difference}
	r.Families, _ = enabledFamilies()
	if err := mode.Render(klog.NewContext(ctx, klog.Logger{}), r); err != nil {
		return nil, err
	}
	var rules []byte
	for line := range strings.Lines(difference.String()) {
		if line, ok := strings.CutPrefix(line, "- "); ok {
			rules = append(rules, line...)
		}
	}
	return rules, nil
}

// runProgram runs a program of the host until ctx ends. The error has the first line of
// its standard error.
func runProgram(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = 100 * time.Millisecond // what it has started may go on
	text, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: not done in time", program)
	}
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		line, _, _ := strings.Cut(string(e.Stderr), "\n")
		err = fmt.Errorf("%s: %w: %s", program, err, line)
	}
	return text, err
}
