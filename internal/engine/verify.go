package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
)

const (
	// verifyInterval is how often some of what the kernel has is read back where it
	// does not announce changes.
	verifyInterval = 250 * time.Millisecond

	// verifyTime is for how long each time: it costs less than a hundredth of a CPU
	// at any number of rows. Much that is damaged shows at once, a single row of
	// ten thousand within half a minute.
	verifyTime = 2 * time.Millisecond
)

// verify reads back rows in turn, until ctx ends.
func (e *Engine) verify(ctx context.Context, v proxy.Verifier, r *repairer) {
	tick := time.NewTicker(verifyInterval)
	defer tick.Stop()
	var rows []proxy.PortKey // still to be read in this round
	var failed string        // why it could not be done
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if e.isFullDue() {
			continue // It compares everything.
		}
		if len(rows) == 0 {
			rows = e.rowKeys()
		}
		var what string
		err := e.turns.inspect(ctx, func(ctx context.Context) (err error) {
			rows, what, err = verifySome(ctx, v, rows)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && what != "":
			r.changed(ctx, what)
		case err == nil:
			failed = ""
		case err != errGaveWay && !errors.Is(err, proxy.ErrNeedSync) && err.Error() != failed:
			failed = err.Error()
			klog.FromContext(ctx).Error(err, "What the kernel has cannot be read back, so changes by other processes may go unseen")
		}
	}
}

// verifySome reads back what all rows stand on and some rows, and returns the others
// and what it found first; empty: nothing.
func verifySome(ctx context.Context, v proxy.Verifier, rows []proxy.PortKey) (rest []proxy.PortKey, what string, err error) {
	began := time.Now()
	found, err := v.Verify(ctx, proxy.PortKey{})
	if err != nil || len(found) > 0 {
		return rows, describe(found), err
	}
	for i, key := range rows {
		if time.Since(began) > verifyTime || ctx.Err() != nil {
			return rows[i:], "", ctx.Err()
		}
		found, err := v.Verify(ctx, key)
		if err != nil || len(found) > 0 {
			return rows[i+1:], fmt.Sprintf("%v: %s", key, describe(found)), err
		}
	}
	return nil, "", nil
}

// describe tells the first of some differences, and how many more there are.
func describe(all []proxy.Difference) string {
	switch n := len(all); n {
	case 0:
		return ""
	case 1:
		return all[0].String()
	default:
		return fmt.Sprintf("%v (and %d more)", all[0], n-1)
	}
}

// isFullDue reports whether a full sync was asked for, now or for later.
func (e *Engine) isFullDue() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.fullFrom.IsZero()
}

// rowKeys returns the wanted rows.
func (e *Engine) rowKeys() []proxy.PortKey {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.resolver.State().Rows))
}
