package kubectl

import (
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
		Short: "Show the live traffic of Services, on one node or on all nodes together",
		Long: `Show connections, bytes and refusals of each Service, the busiest first: on a
terminal continuously, otherwise once, for one interval. Without --node, show
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
			all[i].keepAlive = true
		}
		s := &sum{all: all}
		if err := cli.ShowTop(cmd.Context(), cmd.OutOrStdout(), s.traffic, o); err != nil {
			return err
		}
		if len(s.unanswered) == 0 {
			return nil
		}
		cli.WriteUnanswered(cmd.ErrOrStderr(), s.unanswered)
		return &cli.ExitError{Code: cli.ExitFinding}
	}
	return cmd
}

// sum adds up the traffic of many nodes, repeatedly. It includes the nodes that
// answered the first time. While one of them does not answer, its last counters are
// used, because leaving them out and adding them again would look like traffic.
type sum struct {
	all        []daemon
	last       map[string]*statusapi.TrafficList       // by node; nil before the first answers
	clock      time.Time                               // when the counters were read, on average
	unanswered []cli.NodeAnswer[statusapi.TrafficList] // nodes that did not answer the first time
}

// traffic reads the counters of all nodes and adds them up. It is a [cli.Traffic].
//
// Clocks of nodes differ, so the time of the sum is this machine's at first, and then
// advances by the mean of the time between the two readings of each node that
// answered. Nodes that did not answer do not count: their counters stand still, too.
func (s *sum) traffic(ctx context.Context, query url.Values) (*statusapi.TrafficList, error) {
	answers, err := ask(ctx, s.all, func(ctx context.Context, c cli.Client) (*statusapi.TrafficList, error) {
		return cli.TrafficOf(c)(ctx, query)
	})
	if err != nil && s.last == nil {
		return nil, err
	}
	first := s.last == nil
	if first {
		s.last, s.clock = map[string]*statusapi.TrafficList{}, time.Now()
	}
	var elapsed time.Duration
	nodes := 0
	for _, a := range answers {
		last := s.last[a.Node]
		switch {
		case first && a.Answer == nil:
			s.unanswered = append(s.unanswered, a)
			continue
		case !first && (a.Answer == nil || last == nil):
			continue
		case !first && a.Answer.Off == "" && last.Off == "":
			elapsed += a.Answer.Counted.Sub(last.Counted)
			nodes++
		}
		s.last[a.Node] = a.Answer
	}
	if len(s.last) == 0 {
		return nil, errors.New("no node answers (kubectl sluice status says why)")
	}
	if nodes > 0 {
		s.clock = s.clock.Add(elapsed / time.Duration(nodes))
	}
	out := added(s.last)
	out.Counted = s.clock
	return out, nil
}

// added returns the sum of the counters of nodes.
func added(nodes map[string]*statusapi.TrafficList) *statusapi.TrafficList {
	out := &statusapi.TrafficList{}
	type key struct{ namespace, name, port, protocol, endpoint string }
	at := map[key]int{}
	counted, off := false, ""
	for _, list := range nodes {
		if list.Off != "" {
			off = list.Off
			continue
		}
		counted = true
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
	if !counted {
		out.Off = off
	}
	return out
}
