package nfttest

import (
	"testing"

	"sluice/internal/kernel/nft"
)

// Open opens nf_tables of the calling thread's network namespace until the end of the test.
func Open(tb testing.TB) *nft.Conn {
	tb.Helper()
	c, err := nft.Open()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// Commit commits a batch and fails the test at once if it is refused.
func Commit(tb testing.TB, c nft.Interface, b *nft.Batch) {
	tb.Helper()
	if err := c.Commit(tb.Context(), b); err != nil {
		tb.Fatal(err)
	}
}
