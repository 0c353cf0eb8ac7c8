package userspace

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"sluice/internal/kernel/link"
)

// subnets know which clients an endpoint would reply to directly, past this node: those on its
// subnet, as pods on a bridge are. They are read in the background, since a worker must not wait
// for the kernel.
type subnets struct {
	reader interface {
		Read() (link.Subnets, error)
		Close()
	}
	followed bool                         // follow closes the reader
	last     atomic.Pointer[link.Subnets] // nil before the first reading
	wanted   chan struct{}                // has a token if the last reading was used since
}

// subnetsFor is the least time between two readings.
const subnetsFor = time.Second

// share reports whether client and endpoint were on one subnet at the last reading.
func (s *subnets) share(client, endpoint netip.Addr) bool {
	select {
	case s.wanted <- struct{}{}:
	default:
	}
	last := s.last.Load()
	return last != nil && last.Share(client, endpoint)
}

// update reads the node's subnets. After an error the last reading stays.
func (s *subnets) update() {
	if now, err := s.reader.Read(); err == nil {
		s.last.Store(&now)
	}
}

// follow keeps the subnets up to date while they are used, until ctx ends. Then it closes the
// reader.
func (s *subnets) follow(ctx context.Context) {
	defer s.reader.Close()
	tick := time.NewTicker(subnetsFor)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case <-s.wanted:
			s.update()
		default:
		}
	}
}
