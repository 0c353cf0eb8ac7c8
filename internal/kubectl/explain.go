package kubectl

import (
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

func (f *flags) explain() *cobra.Command {
	var o cli.ExplainOptions
	cmd := &cobra.Command{
		Use:   "explain ADDR:PORT | NAMESPACE/SERVICE[:PORT]",
		Short: "Say what happens to a packet, why, and which nodes differ",
		Example: `  kubectl sluice explain shop/cart
  kubectl sluice explain 10.96.0.10:80 --from 10.244.1.5 --node node-1`,
		Args: cobra.ExactArgs(1),
	}
	o.AddFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		_, all, err := f.daemons(cmd.Context())
		if err != nil {
			return err
		}
		answers, err := ask(cmd.Context(), all, get[statusapi.Explanation](statusapi.ExplainPath, o.Query(args[0])))
		switch {
		case err != nil && f.node != "":
			return all[0].onNode(err)
		case err != nil: // The same on all nodes.
			return err
		case f.node != "":
			err = cli.Explain(cmd.OutOrStdout(), o.Output, answers[0].Answer, time.Now())
		default:
			err = cli.CompareExplanations(cmd.OutOrStdout(), answers, o.Output, time.Now())
		}
		if err != nil {
			return err
		}
		return exitError(answers, (*statusapi.Explanation).Fine)
	}
	return cmd
}
