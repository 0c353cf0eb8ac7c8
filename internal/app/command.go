package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"sluice/internal/cli"
	"sluice/internal/config"
	"sluice/internal/dataplane"
)

// kubeProxy is the name of the program that this one replaces.
const kubeProxy = "kube-proxy"

// NewProxyCommand returns the command for a program that was started by name. If
// the last element of name is kube-proxy, the command is called that and has no
// subcommands, as kube-proxy has none; otherwise it is called sluice. The command
// does not print errors: its caller does.
func NewProxyCommand(name string) *cobra.Command {
	if name = strings.TrimSuffix(filepath.Base(name), ".exe"); name != kubeProxy {
		name = "sluice"
	}
	return newCommand(name, NewOptions(), actions{cleanup, chooseMode, initialise, serve})
}

func newCommand(name string, o *Options, a actions) *cobra.Command {
	cmd := &cobra.Command{
		Use:           name,
		Short:         "Forward Kubernetes Services to their endpoints on this node",
		Args:          noArguments,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.version.print(cmd.OutOrStdout(), name) {
				return nil
			}
			return o.run(cmd.Context(), a)
		},
	}
	cmd.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc) // accepts underscores in flag names
	for _, g := range o.groups {
		cmd.Flags().AddFlagSet(g)
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := noArguments(cmd, cmd.Flags().Args()); args != nil {
			return args // before the flag is the name of a command, mistyped, whose flag it may be
		}
		return cli.FlagError(cmd, err)
	})
	completeMode(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.CompletionOptions.DisableDefaultCmd = name == kubeProxy
	if name != kubeProxy {
		cmd.AddCommand(subcommands()...)
		cmd.SuggestionsMinimumDistance = 2
		cmd.InitDefaultHelpCmd()
	}
	help := cmd.HelpFunc() // cobra's own, for subcommands
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		if c != cmd {
			help(c, args)
			return
		}
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "%s\nUsage:\n  %s [flags]\n", description, name)
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintf(out, "  %s COMMAND\n\nCommands:\n", name)
			for _, sub := range cmd.Commands() {
				if sub.Hidden {
					continue
				}
				fmt.Fprintf(out, "  %-12s %s\n", sub.Name(), sub.Short)
			}
		}
		fmt.Fprintf(out, "\n"+examples, name)
		for _, g := range o.groups {
			if !g.HasAvailableFlags() {
				continue
			}
			fmt.Fprintf(out, "\n%s:\n%s", g.Name(), g.FlagUsagesWrapped(helpWidth(out)))
		}
	})
	return cmd
}

// noArguments rejects positional arguments: a mistyped subcommand must not start
// a daemon. Empty ones are accepted, because templates with an unset variable
// produce them.
func noArguments(cmd *cobra.Command, args []string) error {
	a := cmp.Or(args...)
	switch near := cmd.SuggestionsFor(a); {
	case a == "":
		return nil
	case !cmd.HasSubCommands():
		return fmt.Errorf("unexpected argument %q: %s takes flags only", a, cmd.Name())
	case len(near) > 0:
		return fmt.Errorf("unexpected argument %q: did you mean %s %s?", a, cmd.Name(), near[0])
	default:
		return fmt.Errorf("unexpected argument %q: %s --help lists commands and flags", a, cmd.Name())
	}
}

// actions are the functions that a command line can select; tests replace them.
type actions struct {
	cleanup    func(context.Context, plan) error
	chooseMode func(context.Context, dataplane.Settings) (config.ProxyMode, error)
	initialise func(context.Context, plan) error
	serve      func(context.Context, plan) error
}

// run validates everything that can be validated before it touches the kernel.
func (o *Options) run(ctx context.Context, a actions) error {
	in, err := o.read(dataplane.Default())
	execute := func(ctx context.Context) error {
		if err != nil {
			return err
		}
		return o.runParsed(ctx, a, in)
	}
	// A service reports errors of its flags and file to the event log, so they are
	// returned from within.
	if o.Windows.Service || err == nil && in.input.Object.WindowsRunAsService {
		return o.asService(ctx, execute)
	}
	return execute(ctx)
}

func (o *Options) runParsed(ctx context.Context, a actions, in parsed) error {
	if o.Cleanup && o.InitOnly {
		return errors.New("--cleanup and --init-only: one removes what the other prepares for")
	}
	if o.InitOnly && runtime.GOOS == systemWindows {
		return errors.New("--init-only: there is nothing to prepare on Windows")
	}
	applyGates(in.config.Gates())
	p, err := o.plan(in.config)
	if err != nil {
		return err
	}
	if err := o.startLogging(ctx, in); err != nil {
		return err
	}
	defer logs.FlushLogs()
	return logFailure(ctx, in.config.Object.Logging.Format, o.perform(ctx, a, in, p))
}

// logFailure logs err if the log is not plain text, because the readers of a JSON
// log cannot parse the line that main prints. It then returns an error without text.
func logFailure(ctx context.Context, format string, err error) error {
	restart, _ := errors.AsType[*RestartError](err)
	if err == nil || format == logsapi.DefaultLogFormat || restart != nil || errors.Is(err, context.Canceled) {
		return err
	}
	klog.FromContext(ctx).Error(err, "The daemon or its command failed, exiting")
	return &cli.ExitError{Code: 1}
}

// perform runs the action that the flags select.
func (o *Options) perform(ctx context.Context, a actions, in parsed, p plan) error {
	switch {
	case o.WriteConfigTo != "":
		return o.writeConfig(ctx, in.config)
	case o.Cleanup:
		return a.cleanup(ctx, p)
	}
	if in.input.Object.Mode == "" {
		mode, err := a.chooseMode(ctx, o.settingsOf(in.config))
		if err != nil {
			return err
		}
		p.chosen = true
		if p.config, err = in.input.Configuration(mode); err != nil {
			return err
		}
		if p.balancing, err = o.balancing(mode); err != nil {
			return err
		}
	}
	if o.InitOnly {
		return a.initialise(ctx, p)
	}
	return a.serve(ctx, p)
}

// plan validates what the configuration does not cover. The node's name and the
// source of objects are left out if nothing will be served.
func (o *Options) plan(c config.Configuration) (plan, error) {
	balancing, err := o.balancing(c.Mode)
	if err != nil {
		return plan{}, err
	}
	if err := o.Traffic.check(); err != nil {
		return plan{}, err
	}
	allowed, err := o.Allowed.read()
	if err != nil {
		return plan{}, err
	}
	if _, err := parseCIDRs(untrackedCIDRs, o.Untracked); err != nil {
		return plan{}, err
	}
	p := plan{options: o, config: c, balancing: balancing, allowed: allowed}
	if p.priority, err = o.Windows.priority(); err != nil {
		return plan{}, err
	}
	if o.WriteConfigTo != "" || o.Cleanup || o.InitOnly {
		return p, nil
	}
	if p.node, err = nodeName(c.Object.HostnameOverride); err != nil {
		return plan{}, err
	}
	if p.source, err = o.objectSource(c.Object.ClientConnection); err != nil {
		return plan{}, err
	}
	p.status, err = o.StatusTCP.listener(c, p.source)
	return p, err
}

// startLogging configures logging, and then logs the notices that parsing collected.
func (o *Options) startLogging(ctx context.Context, p parsed) error {
	var to *logsapi.LoggingOptions
	if o.log != nil {
		to = &logsapi.LoggingOptions{ErrorStream: o.log, InfoStream: o.log}
	}
	if err := logsapi.ValidateAndApplyWithOptions(&p.config.Object.Logging, to, p.config.Gates()); err != nil {
		return fmt.Errorf("set up logging: %w", err)
	}
	logger := klog.FromContext(ctx)
	for _, n := range append(o.ignoredFlags(), p.notices...) {
		logger.Info(n.message, n.keysAndValues...)
	}
	for _, f := range o.flags {
		logger.V(1).Info("Flag", "name", "--"+f.Name, "value", f.Value.String())
	}
	return nil
}

// severity returns the letter that klog's text format begins a line with: I, W, E
// or F. A JSON line has none; without a verbosity it is an error.
func severity(line []byte) byte {
	var fields struct{ V any }
	switch {
	case json.Unmarshal(line, &fields) != nil:
		return line[0]
	case fields.V == nil:
		return 'E'
	default:
		return 'I'
	}
}

func (o *Options) writeConfig(ctx context.Context, c config.Configuration) error {
	data, err := yaml.Marshal(c.Object)
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}
	if err := os.WriteFile(o.WriteConfigTo, data, 0o644); err != nil {
		return fmt.Errorf("--write-config-to %q: %w", o.WriteConfigTo, err)
	}
	klog.FromContext(ctx).Info("Wrote the configuration in force", "file", o.WriteConfigTo)
	return nil
}

// serve waits until no other daemon writes rules, and then serves until ctx ends.
func serve(ctx context.Context, p plan) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // what NewProxyServer has started
	self := fmt.Sprintf("mode %s, version %s, started %s", p.config.Mode, p.options.version.reported(), time.Now().Format(time.RFC3339))
	release := daemonLock{lockName, self}.acquire(ctx)
	defer release()
	if ctx.Err() != nil {
		return nil
	}
	server, err := NewProxyServer(ctx, p)
	if err != nil {
		return err
	}
	if server.mode.Drains { // it writes nothing more once ctx has ended
		defer context.AfterFunc(ctx, release)()
	}
	return server.Run(ctx)
}

func cleanup(ctx context.Context, p plan) error {
	removed, err := dataplane.Cleanup(ctx, p.options.settingsOf(p.config), nil)
	for _, what := range removed {
		klog.FromContext(ctx).Info("Removed", "what", what)
	}
	if err != nil {
		return fmt.Errorf("remove objects of service proxies from the kernel: %w", err)
	}
	if len(removed) == 0 {
		klog.FromContext(ctx).Info("Found nothing to remove")
	}
	return nil
}

const (
	description = `Sluice makes this node's kernel forward every Kubernetes Service to a usable
endpoint. It reads Services and EndpointSlices from the API server or from a
folder, and follows every change. Stopping it leaves the rules in force.
`
	examples = `Examples:
  Serve the manifests of a folder, without any cluster:
    %[1]s --manifests ./examples --cluster-cidr 10.244.0.0/16

  Serve a cluster:
    %[1]s --kubeconfig /etc/sluice/kubeconfig --hostname-override node-1 \
      --cluster-cidr 10.244.0.0/16,fd00:10:244::/56

  Serve a cluster that kubeadm has set up, by its ConfigMap:
    %[1]s --config /var/lib/kube-proxy/config.conf
`
	defaultColumns = 80  // if the output is not a terminal
	maxColumns     = 110 // longer lines are hard to read
)

// helpWidth returns how wide a help text may be.
func helpWidth(out io.Writer) int {
	if width, _, err := cli.Terminal(out); err == nil && width > 0 {
		return min(width, maxColumns)
	}
	return defaultColumns
}
