package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sluice/internal/conformance/traffic"
)

// stall is how long an open connection may be without an answer.
const stall = 2 * time.Second

// held is connections that are used all the time, and how they fare.
type held struct {
	stop func()

	mu     sync.Mutex
	intact int // the others are not used any more
	recent fare
}

// fare is how connections fared.
type fare struct {
	broken  []string      // with a reason
	longest time.Duration // between a word and its answer
	rounds  int
}

// and adds how others fared.
func (f fare) and(other fare) fare {
	return fare{
		broken:  append(f.broken, other.broken...),
		longest: max(f.longest, other.longest), rounds: f.rounds + other.rounds,
	}
}

// hold sends words through connections and waits for the answers until stop is
// called, which closes them.
func (s *scene) hold(pause time.Duration, conns ...connection) *held {
	ctx, cancel := context.WithCancel(s.Context())
	h := &held{intact: len(conns)}
	var running sync.WaitGroup
	for _, c := range conns {
		running.Go(func() { h.use(ctx, pause, c) })
	}
	h.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	s.Cleanup(h.stop)
	return h
}

// use uses one connection until ctx ends or it breaks.
func (h *held) use(ctx context.Context, pause time.Duration, c connection) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	answer := make([]byte, 512)
	for ctx.Err() == nil {
		sent := time.Now()
		err := c.SetDeadline(sent.Add(traffic.Scaled(stall)))
		if err == nil {
			_, err = c.Write([]byte("?"))
		}
		if err == nil {
			_, err = c.Read(answer)
		}
		h.note(c, sent, err)
		if err != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (h *held) note(c connection, sent time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent.rounds++
	h.recent.longest = max(h.recent.longest, time.Since(sent))
	if err != nil {
		h.intact--
		h.recent.broken = append(h.recent.broken, fmt.Sprintf("%s %s: %v", sent.Format("15:04:05.000"), c.name, err))
	}
}

// take returns how many connections are intact, and how they fared since the
// last time.
func (h *held) take() (intact int, f fare) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, h.recent = h.recent, fare{}
	return h.intact, f
}
