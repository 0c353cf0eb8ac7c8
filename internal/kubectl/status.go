package kubectl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

func (f *flags) status() *cobra.Command {
	var o cli.StatusOptions
	var allNodes bool
	cmd := &cobra.Command{
		Use:   "status [NAMESPACE/NAME...]",
		Short: "Show whether Services are in force, and where they are not",
		Long: `Show how the daemons of all nodes are, a line for each; or with names, what they
know of these Services and where that differs. With --node, show all of one node.`,
		Example: `  kubectl sluice status
  kubectl sluice status --wait=30s
  kubectl sluice status shop/cart
  kubectl sluice status --node node-1 -A`,
		Args: cobra.ArbitraryArgs,
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&allNodes, "all-nodes", false, "show each node, however many there are")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		if o.Watch && f.node == "" {
			return errors.New("--watch: give --node NAME, as one node can be followed at a time")
		}
		c, all, err := f.daemons(cmd.Context())
		if err != nil {
			return err
		}
		if o.Services = args; len(args) > 0 && o.Namespace == "" {
			o.Namespace = c.services
		}
		if f.node != "" {
			return all[0].onNode(cli.ShowStatus(cmd.Context(), cmd.OutOrStdout(), all[0], o))
		}
		if o.All = o.All || allNodes; o.Wait > 0 {
			if err := wait(cmd.Context(), all, o.Wait); err != nil {
				return err
			}
		}
		return statusOfAll(cmd, all, o)
	}
	return cmd
}

// statusOfAll shows the daemons of all nodes, or Services on all of them.
func statusOfAll(cmd *cobra.Command, all []daemon, o cli.StatusOptions) error {
	if len(o.Services) > 0 {
		answers, err := ask(cmd.Context(), all, func(ctx context.Context, c cli.Client) (*cli.StatusReport, error) {
			return cli.Report(ctx, c, o)
		})
		if err != nil {
			return err
		}
		if err := cli.CompareServices(cmd.OutOrStdout(), answers, o); err != nil {
			return err
		}
		return outcome(answers, func(r *cli.StatusReport) bool { return !o.Problems || !r.Troubled() })
	}
	answers, err := ask(cmd.Context(), all, get[statusapi.Node](statusapi.NodePath, nil))
	if err != nil {
		return err
	}
	if err := cli.Nodes(cmd.OutOrStdout(), answers, o); err != nil {
		return err
	}
	return outcome(answers, func(n *statusapi.Node) bool {
		return !o.Problems || n.Health.Healthy && n.InForce() && n.Counts.Problems == 0
	})
}

// wait waits until everything is in force on all nodes. Which is the slowest
// shows by the error of the first that is not.
func wait(ctx context.Context, all []daemon, patience time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	waited, _ := ask(limited, all, func(ctx context.Context, c cli.Client) (*struct{}, error) { return &struct{}{}, cli.Wait(ctx, c) })
	for _, a := range waited {
		if a.Answer == nil {
			return &cli.ExitError{Code: cli.ExitFinding, Err: fmt.Errorf("waited %v for node %s: %s", patience, a.Node, a.Error)}
		}
	}
	return nil
}
