package app

import (
	"context"
	"errors"
	"fmt"
)

// job is something that runs until ctx ends.
type job struct {
	what string
	run  func(context.Context) error
}

// runAll runs jobs until ctx ends or one of them does, since none can do without
// the others, and returns when all have ended. The error names every job that
// failed, where an errgroup would tell of the first only.
func runAll(ctx context.Context, jobs []job) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(jobs))
	for _, j := range jobs {
		go func() {
			err := j.run(ctx)
			if err != nil {
				err = fmt.Errorf("%s: %w", j.what, err)
			}
			ended <- err
		}()
	}
	var errs []error
	for range jobs {
		errs = append(errs, <-ended)
		stop()
	}
	return errors.Join(errs...)
}
