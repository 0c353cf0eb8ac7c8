package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/dataplane"
)

// NewProxyCommand returns the command. It prints no errors: its caller does,
// and exits with 1.
func NewProxyCommand() *cobra.Command {
	o := NewOptions()
	cmd := &cobra.Command{
		Use:           "sluice",
		Short:         "Forward Kubernetes Services to their endpoints on this node",
		Version:       Version(),
		Args:          noArguments,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	groups := o.flags()
	cmd.SetGlobalNormalizationFunc(hyphens)
	for _, g := range groups {
		cmd.Flags().AddFlagSet(g.flags)
	}
	cmd.SetVersionTemplate(versionLine())
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w (sluice --help lists the flags)", err)
	})
	setHelp(cmd, groups)
	return cmd
}

// hyphens lets a flag be written with underscores.
func hyphens(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// noArguments refuses arguments that are no flags. Empty ones come from
// templates whose variable is not set, and do no harm.
func noArguments(_ *cobra.Command, args []string) error {
	for _, a := range args {
		if a != "" {
			return fmt.Errorf("unexpected argument %q: sluice takes flags only", a)
		}
	}
	return nil
}

// run checks everything that can be checked, and only then touches the kernel.
func (o *Options) run(ctx context.Context) error {
	c, err := o.Configuration()
	if err != nil {
		return err
	}
	node, err := nodeName(o.HostnameOverride)
	if err != nil {
		return err
	}
	if err := o.validateLogging(); err != nil {
		return err
	}
	var from origin
	if !o.Cleanup {
		if from, err = o.origin(); err != nil {
			return err
		}
	}
	if err := logsapi.ValidateAndApply(o.Logging, nil); err != nil {
		return fmt.Errorf("set up logging: %w", err)
	}
	defer logs.FlushLogs()
	if o.Cleanup {
		return cleanup(ctx)
	}
	server, err := NewProxyServer(ctx, plan{config: c, node: node, from: from})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

// cleanup removes the rules of every mode.
func cleanup(ctx context.Context) error {
	for _, m := range config.Modes() {
		mode, err := dataplane.Of(m)
		if err != nil {
			return err
		}
		if err := mode.Cleanup(ctx); err != nil {
			return fmt.Errorf("remove the rules of mode %s: %w", m, err)
		}
		klog.FromContext(ctx).Info("Removed our rules", "mode", m)
	}
	return nil
}
