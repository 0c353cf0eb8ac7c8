package nfacct

import (
	"errors"
	"fmt"
	"strings"
)

// Interface is one network namespace's packet counters. Its methods may be
// called by any goroutine. None waits for anything, so none takes a context:
// the kernel answers while it is asked.
type Interface interface {
	// Ensure makes a counter unless there is one, which goes on counting.
	Ensure(name string) error

	// Counter returns what was counted so far. A counter that is not there is
	// [ErrNotFound].
	Counter(name string) (Count, error)

	// Delete removes a counter. One that is not there is [ErrNotFound], one
	// that a rule names [ErrBusy]. A rule of nf_tables that was deleted over a
	// socket which stays open is still one for some milliseconds, 6 to 13 as
	// seen with Linux 6.18; after a program like iptables-nft has ended it is not.
	Delete(name string) error

	// Close releases the connection. The counters stay.
	Close() error
}

// Count is what a counter has seen.
type Count struct {
	Packets, Bytes uint64
}

var (
	// ErrUnsupported says that the kernel has no packet accounting. It is an
	// [errors.ErrUnsupported].
	ErrUnsupported = fmt.Errorf("packet accounting (nfnetlink_acct): %w", errors.ErrUnsupported)

	// ErrNotFound says that there is no such counter.
	ErrNotFound = errors.New("no such counter")

	// ErrBusy says that a rule names the counter.
	ErrBusy = errors.New("a rule uses the counter")
)

// maxName is the longest name that the kernel takes, in bytes.
const maxName = 31

// checkName refuses what cannot be a name. The kernel would cut some of them
// short, and take a deletion without a name for one of every counter.
func checkName(name string) error {
	if name == "" || len(name) > maxName || strings.ContainsRune(name, 0) {
		return fmt.Errorf("name %q: a counter's name has 1 to %d bytes, none of them zero", name, maxName)
	}
	return nil
}
