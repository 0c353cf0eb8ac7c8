package kubectl

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

func (f *flags) top() *cobra.Command {
	var o cli.TopOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the traffic of Services, of one node or the sum of all",
		Long: `Show connections, bytes and refusals of each Service, the busiest first: again
and again on a terminal, and else once, over one period. Without --node it is
the sum of all nodes that answer.`,
		Args: cobra.NoArgs,
	}
	o.AddFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		_, all, err := f.daemons(cmd.Context())
		if err != nil {
			return err
		}
		if f.node != "" {
			return all[0].onNode(cli.ShowTop(cmd.Context(), cmd.OutOrStdout(), cli.TrafficOf(all[0]), o))
		}
		for i := range all {
			all[i].keep = true
		}
		s := &sum{all: all}
		if err := cli.ShowTop(cmd.Context(), cmd.OutOrStdout(), s.traffic, o); err != nil {
			return err
		}
		if len(s.silent) == 0 {
			return nil
		}
		cli.WriteSilent(cmd.ErrOrStderr(), s.silent)
		return &cli.ExitError{Code: cli.ExitFinding}
	}
	return cmd
}

// sum is the traffic of many nodes, for one who asks again and again.
// The nodes are those that answered at first: what they counted before must not
// look like traffic of now when one is away for a while.
type sum struct {
	all    []daemon
	last   map[string]*statusapi.TrafficList // by node
	silent []cli.NodeAnswer[statusapi.TrafficList]
}

// traffic adds up what the nodes counted.
func (s *sum) traffic(ctx context.Context, query url.Values) (*statusapi.TrafficList, error) {
	answers, err := ask(ctx, s.all, func(ctx context.Context, c cli.Client) (*statusapi.TrafficList, error) {
		return cli.TrafficOf(c)(ctx, query)
	})
	if err != nil && s.last == nil {
		return nil, err
	}
	first := s.last == nil
	if first {
		s.last = map[string]*statusapi.TrafficList{}
	}
	for _, a := range answers {
		switch {
		case a.Answer != nil && (first || s.last[a.Node] != nil):
			s.last[a.Node] = a.Answer
		case first:
			s.silent = append(s.silent, a)
		}
	}
	if len(s.last) == 0 {
		return nil, errors.New("no node answers (kubectl sluice status says why)")
	}
	return added(s.last), nil
}

// added returns the sum of what nodes counted. Its time is the mean of theirs,
// which goes on with them whatever their clocks say.
func added(nodes map[string]*statusapi.TrafficList) *statusapi.TrafficList {
	out := &statusapi.TrafficList{}
	type key struct{ namespace, name, port, protocol, endpoint string }
	at := map[key]int{}
	counted, off := 0, ""
	var base time.Time
	var after time.Duration
	for _, list := range nodes {
		if list.Off != "" {
			off = list.Off
			continue
		}
		if counted++; counted == 1 {
			base = list.Counted
		}
		after += list.Counted.Sub(base)
		for _, p := range list.Items {
			k := key{p.Namespace, p.Name, p.Port, p.Protocol, p.Endpoint}
			i, known := at[k]
			if !known {
				i, at[k] = len(out.Items), len(out.Items)
				out.Items = append(out.Items, statusapi.PortTraffic{
					Namespace: p.Namespace, Name: p.Name, Port: p.Port, Protocol: p.Protocol, Endpoint: p.Endpoint,
				})
			}
			out.Items[i].Add(&p.Traffic)
		}
	}
	if counted == 0 {
		out.Off = cmp.Or(off, "no node counts any")
		return out
	}
	out.Counted = base.Add(after / time.Duration(counted))
	return out
}
