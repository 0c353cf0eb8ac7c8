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

// waitPeriod is how often --wait asks the nodes.
const waitPeriod = time.Second

func (f *flags) status() *cobra.Command {
	var o cli.StatusOptions
	var allNodes bool
	cmd := &cobra.Command{
		Use:   "status [NAMESPACE/NAME...]",
		Short: "Show whether Services are in force, and which nodes differ",
		Long: `Show the status of the daemons of all nodes, a line for each. With names, or -n,
show what they know about these Services, and which nodes differ. With --node,
show the complete status of one node.`,
		Example: `  kubectl sluice status
  kubectl sluice status --wait=30s
  kubectl sluice status shop/cart
  kubectl sluice status --node node-1 -A`,
		Args: cobra.ArbitraryArgs,
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&allNodes, "all-nodes", false, "show a line for each node, however many there are")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		if o.Watch && f.node == "" {
			return errors.New("--watch requires --node NAME: only one node can be followed")
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
			o.Namespace = c.serviceNamespace
		}
		if f.node != "" {
			return all[0].onNode(cli.ShowStatus(cmd.Context(), cmd.OutOrStdout(), all[0], o))
		}
		o.All = o.All || allNodes
		return statusOfAll(cmd, all, o)
	}
	return cmd
}

// statusOfAll shows the status of all nodes, or compares Services, of one namespace or
// named ones, on all nodes.
func statusOfAll(cmd *cobra.Command, all []daemon, o cli.StatusOptions) error {
	if len(o.Services) > 0 || o.Namespace != "" {
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
		return exitError(answers, func(r *cli.StatusReport) bool { return !o.Problems || !r.Troubled() })
	}
	answers, err := ask(cmd.Context(), all, get[statusapi.Node](statusapi.NodePath, nil))
	if err != nil {
		return err
	}
	if err := cli.Nodes(cmd.OutOrStdout(), answers, o); err != nil {
		return err
	}
	return exitError(answers, func(n *statusapi.Node) bool {
		return !o.Problems || !n.Troubled()
	})
}

// wait asks the nodes that the flags select until everything is in force on all of
// them, at most until timeout; with a timeout of 0 it asks once. Pods may be replaced
// meanwhile: they are listed again each time.
func (f *flags) wait(ctx context.Context, timeout time.Duration) error {
	c, err := f.open()
	if err != nil {
		return err
	}
	asked := &waiting{done: map[string]bool{}}
	if timeout == 0 {
		return asked.result(timeout, asked.ask(ctx, c, f.node))
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(waitPeriod)
	defer tick.Stop()
	var last error
	for {
		err := asked.ask(limited, c, f.node)
		if err == nil || errors.Is(err, errForbidden) {
			return err
		}
		if limited.Err() == nil || last == nil { // Otherwise the error may only say that the time is up.
			last = err
		}
		select {
		case <-limited.Done():
			return asked.result(timeout, last)
		case <-tick.C:
		}
	}
}

// waiting is what is known of the nodes that are waited for.
type waiting struct {
	done     map[string]bool // the nodes on which everything is in force
	answered bool            // a node has answered
}

// result returns the error of waiting in vain, given why: a finding, unless no node has
// answered at all. A missing permission is returned unchanged.
func (w *waiting) result(timeout time.Duration, err error) error {
	if err == nil || errors.Is(err, errForbidden) {
		return err
	}
	code := cli.ExitFinding
	if !w.answered {
		code = cli.ExitNoAnswer
	}
	return &cli.ExitError{Code: code, Err: fmt.Errorf("waited %v: %w", timeout, err)}
}

// ask asks the nodes that are not done. It returns what is not in force on the first of
// those that still are not, or nil.
func (w *waiting) ask(ctx context.Context, c *cluster, node string) (first error) {
	all, err := c.daemons(ctx, node)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(d daemon) bool { return w.done[d.node] })
	if len(all) == 0 {
		return nil
	}
	answers, _ := ask(ctx, all, get[statusapi.Node](statusapi.NodePath, nil))
	for _, a := range answers {
		err := errors.New(a.Error)
		if a.Answer != nil {
			err, w.answered = cli.NotInForce(a.Answer), true
		}
		if w.done[a.Node] = err == nil; err != nil && first == nil {
			first = fmt.Errorf("node %s: %w", a.Node, err)
		}
	}
	return first
}
