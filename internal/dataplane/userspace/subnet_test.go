package userspace

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/kernel/link"
)

// countedReader counts readings, and fails from the second one on.
type countedReader int

func (r *countedReader) Read() (link.Subnets, error) {
	if *r++; *r > 1 {
		return link.Subnets{}, errors.New("no answer")
	}
	return link.Subnets{}, nil
}

func (*countedReader) Close() {}

// TestSubnetsAreRead checks that subnets are read once a second at most, only while they are used,
// and that a failed reading does not replace the last one.
func TestSubnetsAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r countedReader
		s := subnets{reader: &r, wanted: make(chan struct{}, 1)}
		ctx, stop := context.WithCancel(t.Context())
		go s.follow(ctx)
		after := func(d time.Duration, uses, want int) {
			t.Helper()
			for range uses {
				s.share(netip.Addr{}, netip.Addr{})
			}
			time.Sleep(d)
			synctest.Wait()
			if int(r) != want {
				t.Errorf("read %d times, want %d", r, want)
			}
		}
		after(10*subnetsFor, 0, 0)
		after(subnetsFor, 100, 1)
		last := s.last.Load()
		after(10*subnetsFor, 0, 1)
		after(subnetsFor, 1, 2)
		if last == nil || s.last.Load() != last {
			t.Error("a failed reading replaced the last one")
		}
		stop()
	})
}
