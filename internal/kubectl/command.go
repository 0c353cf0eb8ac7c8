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

// flags are those that all commands have.
type flags struct {
	loading   *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides

	node            string
	daemonNamespace string
	selector        string
	socket          string
	timeout         time.Duration
}

// NewCommand returns the command. It prints no errors: its caller does, and exits
// with what a [cli.ExitError] says.
func NewCommand(version string) *cobra.Command {
	f := &flags{loading: clientcmd.NewDefaultClientConfigLoadingRules()}
	cmd := &cobra.Command{
		Use:   "kubectl-sluice",
		Short: "Ask the sluice daemons of a cluster",
		Long: `Ask the sluice daemon of one node, or of all, how Services are there: through
the API server, with your own rights. It takes those to list pods and to create
pods/exec in the namespace of the daemons.

Without --node all nodes are asked. What they agree on is shown once, and each
node that differs has a line.

Flags of kubectl that say which cluster it is and who asks work here, too: see
kubectl options.

Exit code: 0 if all is well, 1 if there is something to find or a node gave no
answer, 2 if there is no answer at all.`,
		Args:          oneOfCommands,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       version,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sluice"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	f.add(cmd.PersistentFlags())
	cmd.AddCommand(f.status(), f.explain(), f.top(), f.page())
	for _, sub := range cmd.Commands() {
		cli.Answering(sub)
	}
	f.complete(cmd)
	cmd.SuggestionsMinimumDistance = 2
	return cli.Answering(cmd)
}

// oneOfCommands refuses what is none.
func oneOfCommands(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case len(cmd.SuggestionsFor(args[0])) > 0:
		return fmt.Errorf("no command %q: did you mean %s %s?", args[0], cmd.CommandPath(), cmd.SuggestionsFor(args[0])[0])
	default:
		return fmt.Errorf("no command %q: %s --help lists them", args[0], cmd.CommandPath())
	}
}

// add adds the flags, those of kubectl included.
func (f *flags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.loading.ExplicitPath, "kubeconfig", "", "`FILE` that says where the cluster is and who asks")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.LongName = "" // here it is that of Services
	kubectls := pflag.NewFlagSet("", pflag.ContinueOnError)
	clientcmd.BindOverrideFlags(&f.overrides, kubectls, names)
	kubectls.VisitAll(func(flag *pflag.Flag) { flag.Hidden = flag.Name != "context" }) // as kubectl does
	fs.AddFlagSet(kubectls)
	fs.StringVar(&f.node, "node", "", "ask the daemon of this node, `NAME`, and no other")
	fs.StringVar(&f.daemonNamespace, "daemon-namespace", "kube-system", "the daemons' pods are in this `NAMESPACE`")
	fs.StringVarP(&f.selector, "selector", "l", "", "the daemons' pods have these `LABELS`; without it, "+ownSelector+", and if there are none "+exchangedSelector)
	fs.StringVar(&f.socket, "socket", statusapi.DefaultSocket, "the daemons answer at this unix socket, `FILE` in their pods")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "wait no longer for an answer of a node than this `TIME`")
}

// daemons returns whom to ask.
func (f *flags) daemons(ctx context.Context) (*cluster, []daemon, error) {
	c, err := f.open()
	if err != nil {
		return nil, nil, err
	}
	all, err := c.daemons(ctx, f.node)
	return c, all, err
}

// onNode says where it was that something went wrong.
func (d daemon) onNode(err error) error {
	if _, ok := errors.AsType[*cli.ExitError](err); ok || err == nil {
		return err
	}
	return fmt.Errorf("node %s: %w", d.node, err)
}
