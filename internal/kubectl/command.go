package kubectl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// flags are the flags of all commands.
type flags struct {
	loading   *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides

	node            string
	daemonNamespace string
	selector        string
	socket          string
	timeout         time.Duration
}

// NewCommand returns the command kubectl sluice. It does not print errors: the caller
// prints them, and exits with the code of the [cli.ExitError].
func NewCommand(version string) *cobra.Command {
	f := &flags{loading: clientcmd.NewDefaultClientConfigLoadingRules()}
	cmd := &cobra.Command{
		Use:   "kubectl-sluice",
		Short: "Ask the sluice daemons of a cluster",
		Long: `Ask the sluice daemon of one node, or of all nodes, about Services. Requests go
through the API server with your own permissions: you must be allowed to list
pods and to create pods/exec in the namespace of the daemons.

Without --node, all nodes are asked. What they agree on is shown once, and each
node that differs has a line.

The flags of kubectl that select the cluster and the user work here too: see
kubectl options.

Exit code: 0 if nothing needs attention, 1 if something does or if a node did not
answer, 2 if there is no answer at all.`,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       version,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sluice"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	f.addTo(cmd.PersistentFlags())
	cmd.AddCommand(f.status(), f.explain(), f.top(), f.page())
	for _, sub := range cmd.Commands() {
		cli.Answering(sub)
	}
	f.complete(cmd)
	cmd.SuggestionsMinimumDistance = 2
	return cli.Answering(cmd)
}

// unknownCommand returns an error if there are arguments: the first is not the name of
// a subcommand.
func unknownCommand(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case len(cmd.SuggestionsFor(args[0])) > 0:
		return fmt.Errorf("no command %q: did you mean %s %s?", args[0], cmd.CommandPath(), cmd.SuggestionsFor(args[0])[0])
	default:
		return fmt.Errorf("no command %q: %s --help lists them", args[0], cmd.CommandPath())
	}
}

// addTo adds the flags to a set, including those of kubectl.
func (f *flags) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&f.loading.ExplicitPath, "kubeconfig", "", "kubeconfig `FILE`")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.LongName = "" // commands have a flag of this name, for Services
	kubectlFlags := pflag.NewFlagSet("", pflag.ContinueOnError)
	clientcmd.BindOverrideFlags(&f.overrides, kubectlFlags, names)
	kubectlFlags.VisitAll(func(flag *pflag.Flag) { flag.Hidden = flag.Name != "context" }) // kubectl's help hides them too
	fs.AddFlagSet(kubectlFlags)
	fs.StringVar(&f.node, "node", "", "ask only the daemon of the node of this `NAME`")
	fs.StringVar(&f.daemonNamespace, "daemon-namespace", "kube-system", "`NAMESPACE` of the daemons' pods")
	fs.StringVarP(&f.selector, "selector", "l", "", "`LABELS` of the daemons' pods; by default, "+ownSelector+", or if there are none "+kubeProxySelector)
	fs.StringVar(&f.socket, "socket", statusapi.DefaultSocket, "unix socket of the daemon, a `FILE` in its pod")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "`TIME` to wait for the answer of a node")
}

// daemons returns the daemons that the flags select.
func (f *flags) daemons(ctx context.Context) (*cluster, []daemon, error) {
	c, err := f.open()
	if err != nil {
		return nil, nil, err
	}
	all, err := c.daemons(ctx, f.node)
	return c, all, err
}

// onNode adds the node to an error, unless it is nil or a [cli.ExitError].
func (d daemon) onNode(err error) error {
	if _, ok := errors.AsType[*cli.ExitError](err); ok || err == nil {
		return err
	}
	return fmt.Errorf("node %s: %w", d.node, err)
}
