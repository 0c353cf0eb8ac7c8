package kubectl

import (
	"context"
	"errors"
	"net/url"

	"golang.org/x/sync/errgroup"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// maxConcurrent bounds how many nodes are asked at the same time.
const maxConcurrent = 16

// Get implements [cli.Client]. It takes at most d.timeout.
func (d daemon) Get(ctx context.Context, path string, query url.Values, to any) error {
	if d.err != nil {
		return d.err
	}
	limited, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	err := d.client.Get(limited, path, query, to)
	if e, ok := errors.AsType[*execError](err); ok {
		return e // without what the HTTP client adds
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return timeoutError(d.timeout)
	}
	return err
}

// ask asks all daemons the same question, and returns their answers in the same order.
// It returns an error only if no daemon answers and all have the same error.
func ask[T any](ctx context.Context, all []daemon, question func(context.Context, cli.Client) (*T, error)) ([]cli.NodeAnswer[T], error) {
	out := make([]cli.NodeAnswer[T], len(all))
	var group errgroup.Group
	group.SetLimit(maxConcurrent)
	for i, d := range all {
		group.Go(func() error {
			answer, err := question(ctx, d)
			if d.client != nil && !d.keepAlive {
				d.client.CloseIdle() // which ends the process in the pod
			}
			if out[i] = (cli.NodeAnswer[T]{Node: d.node, Answer: answer}); err != nil {
				_, said := errors.AsType[*statusapi.ResponseError](err)
				out[i].Answer, out[i].Error, out[i].FromDaemon = nil, err.Error(), said
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in out
	for _, a := range out {
		if a.Answer != nil || a.Error != out[0].Error {
			return out, nil
		}
	}
	return out, errors.New(out[0].Error)
}

// get returns the question for the object at a path.
func get[T any](path string, query url.Values) func(context.Context, cli.Client) (*T, error) {
	return func(ctx context.Context, c cli.Client) (*T, error) {
		to := new(T)
		return to, c.Get(ctx, path, query, to)
	}
}

// exitError returns the exit code of a command that has shown all answers:
// ExitNoAnswer if no node answered, ExitFinding if some did not answer or an answer is
// not fine, otherwise nil.
func exitError[T any](all []cli.NodeAnswer[T], fine func(*T) bool) error {
	answered, finding := 0, false
	for _, a := range all {
		if a.Answer != nil {
			answered++
		}
		finding = finding || a.Answer == nil || !fine(a.Answer)
	}
	switch {
	case answered == 0:
		return &cli.ExitError{Code: cli.ExitNoAnswer}
	case finding:
		return &cli.ExitError{Code: cli.ExitFinding}
	default:
		return nil
	}
}
