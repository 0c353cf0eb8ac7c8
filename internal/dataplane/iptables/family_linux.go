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
	owned    map[string]int // rules of ours, by table

	invalid, localhost packetCount // guarded by the dataplane's packets

	*changes
	// Guarded by mu of the changes.
	synced bool // the tables are as uses say
	uses   uses // of our chains
	looked int  // what changes others had made by then
}

// changes knows what others change, in tables that have one stamp: those of one
// family with the legacy variant, of both with the other.
type changes struct {
	mu     sync.Mutex // also held while we write
	stamp  ipt.Stamp  // of the last look
	others int        // how often others were found to have changed something
}

// restore runs a script part by part. The error is a refusal if the line of a
// row is to blame. A change that another process makes before a part, or while
// it is written, moves the stamp by more than the part does.
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
			f.synced = f.synced && !wrote && errors.Is(err, ipt.ErrLocked)
			return wrote, err
		}
		wrote = true
		if err := f.look(ctx, p.changes()...); err != nil {
			f.synced = false
			return wrote, err
		}
	}
	f.uses.add(s.uses)
	return wrote, nil
}

// begin is called before the tables are saved. Until they have been checked
// nobody looks whether they are right.
func (f *family) begin(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced = false
	if err := f.look(ctx); err != nil {
		return err
	}
	f.looked = f.others
	return nil
}

// look notes whether another process has changed the tables since the last
// look, beside these changes of ours.
func (f *family) look(ctx context.Context, ours ...ipt.Change) error {
	now, err := f.programs.Stamp(ctx)
	if err != nil {
		return err
	}
	if !f.stamp.Became(now, ours...) {
		f.others++
	}
	f.stamp = now
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
