package kubeproxy

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/nft"
)

// Keep is what the caller has made his own of what a Cleanup would remove.
type Keep struct {
	Variants []ipt.Variant // the chains in these variants of iptables
	Loopback bool          // the setting that opened loopback, with a guard
}

// Cleanup removes what kube-proxy left in the calling thread's network
// namespace, whatever its mode, and nothing else, but for what is kept. It
// returns what it removed, a line for each; none if there was nothing. It goes
// on after an error, which names everything that could not be looked at or
// removed. If a service proxy opened loopback, it is closed again before its
// guard goes.
func Cleanup(ctx context.Context, keep Keep) (removed []string, err error) {
	h, err := open()
	if err != nil {
		return nil, err
	}
	defer h.nft.Close()
	return h.cleanup(ctx, keep)
}

func (h *host) cleanup(ctx context.Context, keep Keep) (removed []string, err error) {
	l, err := h.find(ctx, keep.Variants...)
	errs := []error{err}
	for _, t := range l.Tables {
		done, err := h.removeTable(ctx, t)
		removed = append(removed, done...)
		errs = append(errs, err)
	}
	if !keep.Loopback {
		done, err := h.closeLoopback(l.Rules)
		removed = append(removed, done...)
		errs = append(errs, err)
	}
	for i := range l.Rules {
		done, err := h.removeRules(ctx, &l.Rules[i])
		if done != "" {
			removed = append(removed, done)
		}
		errs = append(errs, err)
	}
	if l.Link != nil {
		done, err := h.removeLink(&l)
		removed = append(removed, done...)
		errs = append(errs, err)
	}
	// Sets go last: the rules of the chains referred to them.
	done, err := h.removeSets(ctx, l.Sets)
	return append(removed, done...), errors.Join(append(errs, err)...)
}

// removeTable removes a table of the nftables mode.
func (h *host) removeTable(ctx context.Context, t nft.Table) ([]string, error) {
	var b nft.Batch
	b.DeleteTable(t)
	err := h.nft.Commit(ctx, &b)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // somebody was faster
	}
	if err != nil {
		return nil, fmt.Errorf("remove %v: %w", t, err)
	}
	return []string{t.String()}, nil
}
