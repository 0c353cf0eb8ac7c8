package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
			return all[0].onNode(cli.ShowTop(cmd.Context(), cmd.OutOrStdout(), all[0], o))
		}
		for i := range all {
			all[i].keep = true
		}
		s := &sum{all: all}
		if err := cli.ShowTop(cmd.Context(), cmd.OutOrStdout(), s, o); err != nil {
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

// sum answers with the traffic of many nodes, for one who asks again and again.
// The nodes are those that answered at first: what they counted before must not
// look like traffic of now when one is away for a while.
type sum struct {
	all    []daemon
	last   map[string]*statusapi.TrafficList // by node
	silent []cli.NodeAnswer[statusapi.TrafficList]
}

// Get answers with all traffic, in one page.
func (s *sum) Get(ctx context.Context, path string, query url.Values, to any) error {
	list, ok := to.(*statusapi.TrafficList)
	if !ok || path != statusapi.TrafficPath {
		return fmt.Errorf("%s is not the sum of many nodes", path)
	}
	answers, err := ask(ctx, s.all, func(ctx context.Context, c cli.Client) (*statusapi.TrafficList, error) {
		return traffic(ctx, c, query)
	})
	if err != nil && s.last == nil {
		return err
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
		return errors.New("no node answers (kubectl sluice status says why)")
	}
	*list = added(s.last)
	return nil
}

func traffic(ctx context.Context, c cli.Client, query url.Values) (*statusapi.TrafficList, error) {
	var all statusapi.TrafficList
	err := statusapi.EachPage(ctx, query, func(ctx context.Context, query url.Values) (int, string, error) {
		var page statusapi.TrafficList
		err := c.Get(ctx, statusapi.TrafficPath, query, &page)
		items := len(page.Items)
		page.Items = append(all.Items, page.Items...)
		all = page
		return items, page.Continue, err
	})
	return &all, err
}

// added returns the sum of what nodes counted. Its time is the mean of theirs,
// which goes on with them whatever their clocks say.
func added(nodes map[string]*statusapi.TrafficList) statusapi.TrafficList {
	out := statusapi.TrafficList{Items: []statusapi.PortTraffic{}}
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
	out.Counted, out.Total = base.Add(after/time.Duration(counted)), len(out.Items)
	return out
}
