package nftables

import (
	"errors"
	"fmt"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// blame finds the rows whose operations were refused and adds them to those to
// be left out. It reports false when an operation belongs to no row, when there
// is no new row to leave out, and when the state of the kernel is to blame
// rather than a row.
func (u classUsers) blame(err error, refused map[proxy.PortKey]error, drifted func(error) bool) bool {
	var ce *nft.CommitError
	if !errors.As(err, &ce) {
		return false
	}
	found := map[proxy.PortKey]bool{}
	for _, f := range ce.Failures {
		owners := u.owners(f.Op.Owner)
		if len(owners) == 0 {
			return false
		}
		if found[owners[0]] {
			continue // a consequence: the rules of a chain that was refused are, too
		}
		if drifted(f.Err) {
			return false
		}
		for _, key := range owners {
			if refused[key] == nil {
				refused[key] = fmt.Errorf("%v: %w", f.Op, f.Err)
				found[key] = true
			}
		}
	}
	return len(found) > 0
}
