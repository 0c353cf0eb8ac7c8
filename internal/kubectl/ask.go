package kubectl

import (
	"context"
	"errors"
	"net/url"

	"golang.org/x/sync/errgroup"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// together is how many nodes are asked at a time.
const together = 16

// Get asks the daemon, as [statusapi.Client] does.
func (d daemon) Get(ctx context.Context, path string, query url.Values, to any) error {
	if d.err != nil {
		return d.err
	}
	limited, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	err := d.client.Get(limited, path, query, to)
	if e, ok := errors.AsType[*execError](err); ok {
		return e // which says it all
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return tooLate(d.timeout)
	}
	return err
}

// ask asks all daemons the same. One that gives no answer keeps no other from it;
// it is an error if all have the same reason for that.
func ask[T any](ctx context.Context, all []daemon, question func(context.Context, cli.Client) (*T, error)) ([]cli.NodeAnswer[T], error) {
	out := make([]cli.NodeAnswer[T], len(all))
	var group errgroup.Group
	group.SetLimit(together)
	for i, d := range all {
		group.Go(func() error {
			answer, err := question(ctx, d)
			if d.client != nil && !d.keep {
				d.client.CloseIdle() // and end a process on each of very many nodes
			}
			if out[i] = (cli.NodeAnswer[T]{Node: d.node, Answer: answer}); err != nil {
				_, said := errors.AsType[*statusapi.ResponseError](err)
				out[i].Answer, out[i].Error, out[i].Said = nil, err.Error(), said
			}
			return nil
		})
	}
	_ = group.Wait() // each has its own error
	for _, a := range out {
		if a.Answer != nil || a.Error != out[0].Error {
			return out, nil
		}
	}
	return out, errors.New(out[0].Error)
}

// get is the question for the object at a path.
func get[T any](path string, query url.Values) func(context.Context, cli.Client) (*T, error) {
	return func(ctx context.Context, c cli.Client) (*T, error) {
		to := new(T)
		return to, c.Get(ctx, path, query, to)
	}
}

// outcome returns the error that many answers come to: no node answered, or some
// did not, or an answer is a finding.
func outcome[T any](all []cli.NodeAnswer[T], fine func(*T) bool) error {
	answered, finding := 0, false
	for _, a := range all {
		if a.Answer != nil {
			answered++
		}
		finding = finding || a.Answer == nil || !fine(a.Answer)
	}
	switch {
	case answered == 0:
		return &cli.ExitError{Code: cli.ExitNoAnswer} // it was shown why
	case finding:
		return &cli.ExitError{Code: cli.ExitFinding}
	default:
		return nil
	}
}
