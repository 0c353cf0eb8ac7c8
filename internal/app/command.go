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

// kubeProxy is the name of the program whose place this one takes.
const kubeProxy = "kube-proxy"

// NewProxyCommand returns the command. It is known by the last part of name if
// that is kube-proxy, for command lines that were written for it. It prints no
// errors: its caller does, and exits with 1.
func NewProxyCommand(name string) *cobra.Command {
	if name = strings.TrimSuffix(filepath.Base(name), ".exe"); name != kubeProxy {
		name = "sluice"
	}
	return newCommand(name, NewOptions(), steps{cleanup, chooseMode, initialise, serve})
}

func newCommand(name string, o *Options, s steps) *cobra.Command {
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
			return o.run(cmd.Context(), s)
		},
	}
	cmd.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc) // a flag may be written with underscores
	for _, g := range o.groups {
		cmd.Flags().AddFlagSet(g)
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w (%s --help lists the flags)", err, name)
	})
	completeMode(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.CompletionOptions.DisableDefaultCmd = name == kubeProxy
	if name != kubeProxy {
		cmd.AddCommand(subcommands()...)
		cmd.SuggestionsMinimumDistance = 2
		cmd.InitDefaultHelpCmd()
	}
	help := cmd.HelpFunc() // which subcommands have
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
			fmt.Fprintf(out, "\n%s:\n%s", g.Name(), g.FlagUsagesWrapped(columns(out)))
		}
	})
	return cmd
}

// noArguments refuses arguments that are no flags: a mistyped command must not
// start a daemon. Empty ones come from templates whose variable is not set, and
// do no harm.
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

// steps are what a command line can come to. They do the work; run decides.
type steps struct {
	cleanup    func(context.Context, plan) error
	chooseMode func(context.Context, dataplane.Settings) (config.ProxyMode, error)
	initialise func(context.Context, plan) error
	serve      func(context.Context, plan) error
}

// run checks everything that can be checked, and only then touches the kernel.
func (o *Options) run(ctx context.Context, s steps) error {
	said, err := o.read(dataplane.Default())
	execute := func(ctx context.Context) error {
		if err != nil {
			return err
		}
		return o.execute(ctx, s, said)
	}
	// What is wrong with the file is for who started the service as well.
	if o.Windows.Service || err == nil && said.input.Object.WindowsRunAsService {
		return o.asService(ctx, execute)
	}
	return execute(ctx)
}

func (o *Options) execute(ctx context.Context, s steps, said parsed) error {
	if o.Cleanup && o.InitOnly {
		return errors.New("--cleanup and --init-only: one removes what the other prepares for")
	}
	if o.InitOnly && runtime.GOOS == systemWindows {
		return errors.New("--init-only: there is nothing to prepare on Windows")
	}
	openGates(said.config.Gates())
	p, err := o.plan(said.config)
	if err != nil {
		return err
	}
	if err := o.startLogging(ctx, said); err != nil {
		return err
	}
	defer logs.FlushLogs()
	return inLog(ctx, said.config.Object.Logging.Format, o.act(ctx, s, said, p))
}

// inLog puts an error into a log that programs read, who would make nothing of
// another line, and says so.
func inLog(ctx context.Context, format string, err error) error {
	restart, _ := errors.AsType[*RestartError](err)
	if err == nil || format == logsapi.DefaultLogFormat || restart != nil || errors.Is(err, context.Canceled) {
		return err
	}
	klog.FromContext(ctx).Error(err, "Failed")
	return &cli.ExitError{Code: 1}
}

// act does what was asked for.
func (o *Options) act(ctx context.Context, s steps, said parsed, p plan) error {
	switch {
	case o.WriteConfigTo != "":
		return o.writeConfig(ctx, said.config)
	case o.Cleanup:
		return s.cleanup(ctx, p)
	}
	if said.input.Object.Mode == "" {
		mode, err := s.chooseMode(ctx, o.settingsOf(said.config))
		if err != nil {
			return err
		}
		if p.config, err = said.input.Configuration(mode); err != nil {
			return err
		}
		if p.balancing, err = o.balancing(mode); err != nil {
			return err
		}
	}
	if o.InitOnly {
		return s.initialise(ctx, p)
	}
	return s.serve(ctx, p)
}

// plan says what to serve and as whom. Whoever does not serve needs neither.
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
	if _, err := ranges(untrackedCIDRs, o.Untracked); err != nil {
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
	if p.from, err = o.objectSource(c.Object.ClientConnection); err != nil {
		return plan{}, err
	}
	p.status, err = o.StatusTCP.listener(c, p.from)
	return p, err
}

// startLogging makes the log what the configuration says and puts there what
// had to wait for it.
func (o *Options) startLogging(ctx context.Context, p parsed) error {
	var to *logsapi.LoggingOptions
	if o.log != nil {
		to = &logsapi.LoggingOptions{ErrorStream: o.log, InfoStream: o.log}
	}
	if err := logsapi.ValidateAndApplyWithOptions(&p.config.Object.Logging, to, p.config.Gates()); err != nil {
		return fmt.Errorf("set up logging: %w", err)
	}
	logger := klog.FromContext(ctx)
	for _, n := range append(o.overruled(), p.notices...) {
		logger.Info(n.message, n.facts...)
	}
	for _, f := range o.flags {
		logger.V(1).Info("Flag", "name", "--"+f.Name, "value", f.Value.String())
	}
	return nil
}

// severity returns the letter with which a line of the log begins, or would in text:
// of JSON lines, those without a verbosity are errors.
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

// serve proxies until ctx ends, once no other daemon does.
func serve(ctx context.Context, p plan) error {
	about := fmt.Sprintf("mode %s, version %s, started %s", p.config.Mode, p.options.version.reported(), time.Now().Format(time.RFC3339))
	release := turn{turnName, about}.await(ctx)
	defer release()
	if ctx.Err() != nil {
		return nil
	}
	server, err := NewProxyServer(ctx, p)
	if err != nil {
		return err
	}
	if server.mode.Drains {
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
		return fmt.Errorf("remove what service proxies left: %w", err)
	}
	if len(removed) == 0 {
		klog.FromContext(ctx).Info("There was nothing to remove")
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
	defaultColumns = 80  // when it is not a terminal that reads
	maxColumns     = 110 // longer lines are hard to read
)

func columns(out io.Writer) int {
	if width, _, err := cli.Terminal(out); err == nil && width > 0 {
		return min(width, maxColumns)
	}
	return defaultColumns
}
