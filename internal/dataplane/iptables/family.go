package iptables

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// family is the programs of one family.
type family struct {
	proxy.Family
	programs ipt.Interface
	most     int            // how many chains one restore has
	counts   bool           // the kernel can count packets
	owned    map[string]int // rules of ours, by table

	mu      sync.Mutex // guards the rest, and the tables while we write
	stamp   string     // of the tables as we left them; empty before the first Sync
	foreign bool       // somebody else has changed them since
	checked bool       // what was written first was also found
}

// restore runs a script part by part. The error is a refusal if the line of a
// row is to blame.
func (f *family) restore(ctx context.Context, s *script) (wrote bool, err error) {
	parts := s.parts(f.most)
	if len(parts) == 0 {
		return false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(ctx); err != nil {
		return false, err
	}
	for _, p := range parts {
		if err := f.part(ctx, p.lines()); err != nil {
			f.foreign = true // tables before the refused one may have been written
			return wrote, err
		}
		wrote = true
	}
	f.stamp, err = f.programs.Stamp(ctx)
	return wrote, err
}

// begin notes how the tables are before they are saved.
func (f *family) begin(ctx context.Context) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stamp, err = f.programs.Stamp(ctx)
	f.foreign = false
	return err
}

// look notes whether somebody else has changed the tables.
func (f *family) look(ctx context.Context) error {
	now, err := f.programs.Stamp(ctx)
	if err != nil {
		return err
	}
	f.foreign = f.foreign || f.stamp != "" && f.stamp != now
	return nil
}

func (f *family) part(ctx context.Context, lines []entry) error {
	err := f.programs.Restore(ctx, text(lines))
	var refused *ipt.RestoreError
	if !errors.As(err, &refused) || refused.Line < 1 || refused.Line > len(lines) {
		return err
	}
	owner := lines[refused.Line-1].owner
	if refused.Text == "COMMIT" {
		owner = only(lines) // the legacy variant cannot tell
	}
	if owner == nil {
		return err
	}
	return &refusal{*owner, err}
}

// only returns the owner of all lines that have one; nil if there are several.
func only(lines []entry) *proxy.PortKey {
	var one *proxy.PortKey
	for _, l := range lines {
		switch {
		case l.owner == nil || one != nil && *one == *l.owner:
		case one != nil:
			return nil
		default:
			one = l.owner
		}
	}
	return one
}

// refusal is a row that iptables would not take.
type refusal struct {
	row proxy.PortKey
	err error
}

func (r *refusal) Error() string { return fmt.Sprintf("%v: %v", r.row, r.err) }
func (r *refusal) Unwrap() error { return r.err }
