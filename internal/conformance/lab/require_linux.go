package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// Test is what Require needs of a testing.TB. The lab is not for tests alone, so
// it does not import that package.
type Test interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Require ends a test that needs a lab where none can be made. It fails rather
// than skips: a kernel test that did not run has proven nothing.
func Require(tb Test) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatalf("the lab needs network namespaces: run as root, or under unshare -rn")
	}
	h, err := newHost("probe", &traffic.Ports{})
	if err != nil {
		tb.Fatalf("the lab needs network namespaces: %v", err)
	}
	if err := h.close(); err != nil {
		tb.Fatalf("remove network namespace: %v", err)
	}
}

// Supports returns an error that says what the node's kernel lacks for sending
// a protocol through address translation, or nil. A kernel that has not
// started to track connections yet is taken to be able to.
func (l *Lab) Supports(p proxy.Protocol) error {
	if p != proxy.SCTP {
		return nil
	}
	return l.node.Do(func() error {
		const settings = "/proc/sys/net/netfilter/nf_conntrack_"
		if _, err := os.Stat(settings + "max"); err != nil {
			return nil
		}
		_, err := os.Stat(settings + "sctp_timeout_established")
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the kernel cannot track SCTP (CONFIG_NF_CT_PROTO_SCTP): %w", errors.ErrUnsupported)
		}
		return err
	})
}
