package kubectl

import (
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

func (f *flags) explain() *cobra.Command {
	var from, proto, in, output string
	cmd := &cobra.Command{
		Use:   "explain ADDR:PORT | NAMESPACE/SERVICE[:PORT]",
		Short: "Say what happens to a packet, why, and on which nodes it fares otherwise",
		Example: `  kubectl sluice explain shop/cart
  kubectl sluice explain 10.96.0.10:80 --from 10.244.1.5 --node node-1`,
		Args: cobra.ExactArgs(1),
	}
	fs := cmd.Flags()
	fs.StringVar(&from, "from", "", "the client's `IP`; without it, the node itself")
	fs.StringVar(&proto, "proto", "", "tcp, udp or sctp; without it, tcp or what the Service's port has")
	fs.StringVar(&in, "in", "", "the `INTERFACE` that the packet comes in on")
	fs.StringVarP(&output, "output", "o", "text", "`FORMAT`: text, json, yaml")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cli.CheckFormat(output, cli.ExplainFormats); err != nil {
			return err
		}
		_, all, err := f.daemons(cmd.Context())
		if err != nil {
			return err
		}
		query := url.Values{"to": {args[0]}}
		for name, value := range map[string]string{"from": from, "proto": proto, "in": in} {
			if value != "" {
				query.Set(name, value)
			}
		}
		answers, err := ask(cmd.Context(), all, get[statusapi.Explanation](statusapi.ExplainPath, query))
		if err != nil {
			return all[0].onNode(err)
		}
		if f.node != "" {
			return explanationOfOne(cmd, answers[0], output)
		}
		if err := cli.CompareExplanations(cmd.OutOrStdout(), answers, output, time.Now()); err != nil {
			return err
		}
		return outcome(answers, (*statusapi.Explanation).Fine)
	}
	return cmd
}

func explanationOfOne(cmd *cobra.Command, a cli.NodeAnswer[statusapi.Explanation], output string) error {
	if err := cli.Explain(cmd.OutOrStdout(), output, a.Answer, time.Now()); err != nil {
		return err
	}
	return outcome([]cli.NodeAnswer[statusapi.Explanation]{a}, (*statusapi.Explanation).Fine)
}
