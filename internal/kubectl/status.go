package kubectl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// waitPeriod is how often nodes are asked whether everything is in force.
const waitPeriod = time.Second

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
		if o.Wait != nil {
			if err := f.wait(cmd.Context(), *o.Wait); err != nil {
				return err
			}
			o.Wait = nil
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
		o.All = o.All || allNodes
		return statusOfAll(cmd, all, o)
	}
	return cmd
}

// statusOfAll shows the daemons of all nodes, or Services on all of them.
func statusOfAll(cmd *cobra.Command, all []daemon, o cli.StatusOptions) error {
	if len(o.Services) > 0 {
		o.Endpoints = o.Output != "json" && o.Output != "yaml" // to compare them
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

// wait waits until everything is in force on all nodes that are to be asked. Pods
// may come and go meanwhile; a node is asked until its time has come, and without
// patience once.
func (f *flags) wait(ctx context.Context, patience time.Duration) error {
	c, err := f.open()
	if err != nil {
		return err
	}
	if patience == 0 {
		return inVain(patience, c.late(ctx, f.node, map[string]bool{}))
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(waitPeriod)
	defer tick.Stop()
	done := map[string]bool{}
	var why error
	for {
		late := c.late(limited, f.node, done)
		if late == nil || errors.Is(late, errForbidden) {
			return late
		}
		if limited.Err() == nil || why == nil { // the end of the time is no reason
			why = late
		}
		select {
		case <-limited.Done():
			return inVain(patience, why)
		case <-tick.C:
		}
	}
}

// inVain says that it was in vain to wait, if there is a reason.
func inVain(patience time.Duration, why error) error {
	if why == nil || errors.Is(why, errForbidden) {
		return why
	}
	return &cli.ExitError{Code: cli.ExitFinding, Err: fmt.Errorf("waited %v: %w", patience, why)}
}

// late asks the nodes that are not done, and says why the first is not done yet.
func (c *cluster) late(ctx context.Context, node string, done map[string]bool) (late error) {
	all, err := c.daemons(ctx, node)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(d daemon) bool { return done[d.node] })
	if len(all) == 0 {
		return nil
	}
	answers, _ := ask(ctx, all, get[statusapi.Node](statusapi.NodePath, nil))
	for _, a := range answers {
		why := errors.New(a.Error)
		if a.Answer != nil {
			why = cli.NotInForce(a.Answer)
		}
		if done[a.Node] = why == nil; why != nil && late == nil {
			late = fmt.Errorf("node %s: %w", a.Node, why)
		}
	}
	return late
}
